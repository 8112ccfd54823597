"""Keep the newest seconds of a stream warm, then ask about them: standard library only.

    python examples/warm_window.py http://127.0.0.1:8000 STREAM_ID "Is the lamp on or off?" [...]

A warm window is decoded, encoded and read by the model as its frames arrive, so a question pays for
its own words. Each answer is printed with the age of its newest frame and the tokens that were
reused. A server with keys wants one in LIVEEDGE_API_KEY.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import Any

SECONDS, FPS = 4, 2


def call(url: str, body: object = None, *, method: str | None = None) -> Any:
    """The JSON of a GET, or of a POST where there is a body."""
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Content-Type": "application/json",
            "Authorization": f"Bearer {os.environ.get('LIVEEDGE_API_KEY') or 'any'}",
        },
        method=method,
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def keep_warm(url: str, stream_id: str, model: str) -> str:
    """The URL of a window, once it is warm."""
    window = f"{url}/v1/streams/{stream_id}/windows/example"
    call(window, {"model": model, "seconds": SECONDS, "max_fps": FPS}, method="PUT")
    while (view := call(window))["state"] == "warming":
        time.sleep(0.1)
    if view["state"] == "failed":
        sys.exit(f"the window cannot be kept warm: {view['reason']}")
    return window


def ask(url: str, stream_id: str, model: str, question: str) -> None:
    # The same seconds and rate as the window, and no word before them: that is how it is found.
    # `edge=grid` takes the frames that the window holds; without it the last one is replaced by the
    # camera's newest, which has yet to be encoded. `max_age_ms=<bound>` chooses between the two.
    segment = f"start_offset_ms=-{SECONDS * 1000}&max_fps={FPS}&edge=grid"
    video = {"url": f"ovs://streams/{stream_id}?{segment}"}
    content = [{"type": "video_url", "video_url": video}, {"type": "text", "text": question}]
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    answer = call(f"{url}/v1/chat/completions", body)
    facts, tokens = answer["liveedge"], answer["liveedge"]["tokens"]
    print(answer["choices"][0]["message"]["content"])
    print(
        f"evidence was {facts['age_ms']} ms old; {tokens['reused']} tokens were reused,"
        f" {tokens['prefilled']} computed; first token after {facts['timings_ms']['first_token']} ms",
        file=sys.stderr,
    )


def main() -> None:
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    url, stream_id, *questions = sys.argv[1:]
    try:
        model = call(f"{url}/v1/models")["data"][0]["id"]
        window = keep_warm(url, stream_id, model)
        for question in questions:
            ask(url, stream_id, model, question)
        call(window, method="DELETE")
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.code}: {error.read().decode()}")
    except urllib.error.URLError as error:
        sys.exit(f"no answer from {url}: {error.reason}")


if __name__ == "__main__":
    main()
