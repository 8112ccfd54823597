"""Ask a running server about a stream: standard library only.

    python examples/ask.py http://127.0.0.1:8000 STREAM_ID "Is the door open?"

A server with keys wants one in LIVEEDGE_API_KEY.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any


def call(url: str, body: object = None) -> Any:
    """The JSON of a GET, or of a POST where there is a body."""
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Content-Type": "application/json",
            "Authorization": f"Bearer {os.environ.get('LIVEEDGE_API_KEY') or 'any'}",
        },
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def ask(url: str, stream_id: str, question: str) -> None:
    frame = {"url": f"ovs://streams/{stream_id}?frame_index=-1"}
    content = [{"type": "image_url", "image_url": frame}, {"type": "text", "text": question}]
    body = {
        "model": call(f"{url}/v1/models")["data"][0]["id"],
        "messages": [{"role": "user", "content": content}],
    }
    answer = call(f"{url}/v1/chat/completions", body)
    print(answer["choices"][0]["message"]["content"])
    print(f"evidence was {answer['liveedge']['age_ms']} ms old", file=sys.stderr)


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        ask(*sys.argv[1:])
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.code}: {error.read().decode()}")
    except urllib.error.URLError as error:
        sys.exit(f"no answer from {sys.argv[1]}: {error.reason}")


if __name__ == "__main__":
    main()
