"""The last seconds of a stream, asked through the `openai` package, answer streamed.

    python examples/openai_client.py http://127.0.0.1:8000 [RTSP_URL]

Without an RTSP address it watches the simulated workcell. A server with keys wants one in
LIVEEDGE_API_KEY.
"""

import os
import sys
import time
from typing import Any

import httpx
from openai import OpenAI, OpenAIError

KEY = os.environ.get("LIVEEDGE_API_KEY") or "any"


def watch_and_ask(url: str, source: dict[str, str]) -> None:
    with httpx.Client(
        base_url=f"{url}/v1beta", headers={"Authorization": f"Bearer {KEY}"}, timeout=30
    ) as http:
        created = http.post("/streams", json={"source": source}).raise_for_status()
        stream_id = created.json()["id"]
        time.sleep(3)  # let there be a past to ask about
        try:
            ask(url, stream_id)
        finally:
            http.delete(f"/streams/{stream_id}").raise_for_status()


def ask(url: str, stream_id: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key=KEY)
    model = client.models.list().data[0].id
    segment = f"ovs://streams/{stream_id}?start_offset_ms=-2000&max_fps=2"
    content: Any = [  # the SDK has no type for video parts; it sends them as they are
        {"type": "video_url", "video_url": {"url": segment}},
        {"type": "text", "text": "Which way is the belt moving?"},
    ]
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": content}], stream=True
    )
    for chunk in answer:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    source = {"type": "rtsp", "url": sys.argv[2]} if len(sys.argv) > 2 else {"type": "sim"}
    try:
        watch_and_ask(sys.argv[1], source)
    except httpx.HTTPStatusError as error:
        sys.exit(f"{error.response.status_code}: {error.response.text}")
    except (httpx.HTTPError, OpenAIError) as error:
        sys.exit(f"{sys.argv[1]}: {error}")


if __name__ == "__main__":
    main()
