"""The last seconds of a stream, asked through the `openai` package, answer streamed.

    python examples/openai_client.py http://127.0.0.1:8000 [RTSP_URL]

Without an RTSP address it watches the simulated workcell.
"""

import sys
import time
from typing import Any

import httpx
from openai import OpenAI


def main() -> None:
    url = sys.argv[1]
    source = {"type": "rtsp", "url": sys.argv[2]} if len(sys.argv) > 2 else {"type": "sim"}
    created = httpx.post(f"{url}/v1beta/streams", json={"source": source}, timeout=30)
    created.raise_for_status()
    stream_id = created.json()["id"]
    time.sleep(3)  # let there be a past to ask about

    client = OpenAI(base_url=f"{url}/v1", api_key="any")
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
    httpx.delete(f"{url}/v1beta/streams/{stream_id}", timeout=30).raise_for_status()


if __name__ == "__main__":
    main()
