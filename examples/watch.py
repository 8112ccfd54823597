"""Ask a standing question and print each answer as it comes: standard library only.

    python examples/watch.py http://127.0.0.1:8000 STREAM_ID "Is the lamp on or off?" [RESULTS]

The server asks by itself whenever the picture changes, here until so many results (default 5) have
come. A connection that breaks is resumed behind the last event that was read. A server with keys
wants one in LIVEEDGE_API_KEY.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

TRIES = 5
READ_LIMIT_S = 60.0  # the server breaks its silence every 15 s


def request(url: str, body: object = None, **headers: str) -> urllib.request.Request:
    """A GET, or a POST where there is a body."""
    return urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Content-Type": "application/json",
            "Authorization": f"Bearer {os.environ.get('LIVEEDGE_API_KEY') or 'any'}",
            **headers,
        },
    )


def create(url: str, stream_id: str, question: str, n_results: int) -> str:
    """The id of a new watch."""
    with urllib.request.urlopen(request(f"{url}/v1/models")) as response:
        model = json.load(response)["data"][0]["id"]
    media = {"url": f"ovs://streams/{stream_id}?frame_index=-1"}
    content = [{"type": "image_url", "image_url": media}, {"type": "text", "text": question}]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "on": "change",  # or "every_ms": 1000
        "max_results": n_results,
        "max_completion_tokens": 64,
    }
    with urllib.request.urlopen(request(f"{url}/v1/watches", body)) as response:
        return str(json.load(response)["id"])


def events(url: str, watch_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kind and data of each event up to the end, over as many connections as it takes."""
    last_id, kind = "0", ""
    for _ in range(TRIES):
        asked = request(f"{url}/v1/watches/{watch_id}/events", **{"Last-Event-ID": last_id})
        try:
            with urllib.request.urlopen(asked, timeout=READ_LIMIT_S) as response:
                for line in response:
                    name, _, value = line.decode().rstrip("\n").partition(": ")
                    if name == "id":
                        last_id = value
                    elif name == "event":
                        kind = value
                    elif name == "data":
                        yield kind, json.loads(value)
                        if kind == "ended":
                            return
        except (TimeoutError, ConnectionError):
            time.sleep(1.0)
    sys.exit("the events cannot be read: the connection breaks again and again")


def main() -> None:
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    url, stream_id, question, *rest = sys.argv[1:]
    try:
        watch_id = create(url, stream_id, question, int(rest[0]) if rest else 5)
        for kind, data in events(url, watch_id):
            if kind == "result":
                print(data["text"], flush=True)
                facts = data["liveedge"]
                frame = facts["frames"][-1]["frame_index"]
                print(f"frame {frame}, {facts['age_ms']} ms old", file=sys.stderr)
            elif kind == "error":
                print(f"{data['error']['code']}: {data['error']['message']}", file=sys.stderr)
            elif kind == "ended":
                print(f"ended: {data['reason']}", file=sys.stderr)
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.code}: {error.read().decode()}")
    except urllib.error.URLError as error:
        sys.exit(f"no answer from {url}: {error.reason}")


if __name__ == "__main__":
    main()
