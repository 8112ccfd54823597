"""Push pictures from a folder into a stream and ask about the newest one.

    python examples/push_frames.py http://127.0.0.1:8000 FOLDER "What do you see?"

A server with keys wants one in LIVEEDGE_API_KEY.
"""

import os
import sys
import time
from pathlib import Path

import httpx

TYPES = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp"}
FPS = 2.0


def push_and_ask(http: httpx.Client, pictures: list[Path], question: str) -> None:
    created = http.post("/streams", json={"source": {"type": "push"}}).raise_for_status()
    stream_id = created.json()["id"]
    try:
        for picture in pictures:
            http.post(
                f"/streams/{stream_id}/frames",
                content=picture.read_bytes(),
                headers={"Content-Type": TYPES[picture.suffix.lower()]},
            ).raise_for_status()
            time.sleep(1 / FPS)
        print(ask(http, stream_id, question))
    finally:
        http.delete(f"/streams/{stream_id}").raise_for_status()


def ask(http: httpx.Client, stream_id: str, question: str) -> str:
    frame = {"url": f"ovs://streams/{stream_id}?frame_index=-1"}
    content = [{"type": "image_url", "image_url": frame}, {"type": "text", "text": question}]
    model = http.get("/models").raise_for_status().json()["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    answer = http.post("/chat/completions", json=body).raise_for_status().json()
    return str(answer["choices"][0]["message"]["content"])


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    url, folder, question = sys.argv[1:]
    if not Path(folder).is_dir():
        sys.exit(f"{folder} is no folder")
    pictures = [path for path in sorted(Path(folder).iterdir()) if path.suffix.lower() in TYPES]
    if not pictures:
        sys.exit(f"{folder} holds no picture: {', '.join(TYPES)}")
    headers = {"Authorization": f"Bearer {os.environ.get('LIVEEDGE_API_KEY') or 'any'}"}
    try:
        with httpx.Client(base_url=f"{url}/v1beta", headers=headers, timeout=30) as http:
            push_and_ask(http, pictures, question)
    except httpx.HTTPStatusError as error:
        sys.exit(f"{error.response.status_code}: {error.response.text}")
    except httpx.HTTPError as error:
        sys.exit(f"no answer from {url}: {error}")


if __name__ == "__main__":
    main()
