"""Push pictures from a folder into a stream and ask about the newest one.

python examples/push_frames.py http://127.0.0.1:8000 FOLDER "What do you see?"
"""

import sys
import time
from pathlib import Path

import httpx

TYPES = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp"}
FPS = 2.0


def main() -> None:
    url, folder, question = sys.argv[1:]
    pictures = [path for path in sorted(Path(folder).iterdir()) if path.suffix.lower() in TYPES]
    with httpx.Client(base_url=f"{url}/v1beta", timeout=30) as http:
        created = http.post("/streams", json={"source": {"type": "push"}}).raise_for_status()
        stream_id = created.json()["id"]
        for picture in pictures:
            http.post(
                f"/streams/{stream_id}/frames",
                content=picture.read_bytes(),
                headers={"Content-Type": TYPES[picture.suffix.lower()]},
            ).raise_for_status()
            time.sleep(1 / FPS)
        reference = f"ovs://streams/{stream_id}?frame_index=-1"
        content = [
            {"type": "image_url", "image_url": {"url": reference}},
            {"type": "text", "text": question},
        ]
        answer = http.post(
            "/chat/completions",
            json={
                "model": http.get("/models").json()["data"][0]["id"],
                "messages": [{"role": "user", "content": content}],
            },
        ).raise_for_status()
        print(answer.json()["choices"][0]["message"]["content"])
        http.delete(f"/streams/{stream_id}").raise_for_status()


if __name__ == "__main__":
    main()
