"""Ask a running server about a stream: standard library only.

python examples/ask.py http://127.0.0.1:8000 STREAM_ID "Is the door open?"
"""

import json
import sys
import urllib.request


def main() -> None:
    url, stream_id, question = sys.argv[1:]
    with urllib.request.urlopen(f"{url}/v1/models") as response:
        model = json.load(response)["data"][0]["id"]
    body = {
        "model": model,
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "image_url",
                        "image_url": {"url": f"ovs://streams/{stream_id}?frame_index=-1"},
                    },
                    {"type": "text", "text": question},
                ],
            }
        ],
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer any"},
    )
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)
    print(answer["choices"][0]["message"]["content"])
    print(f"evidence was {answer['liveedge']['age_ms']} ms old", file=sys.stderr)


if __name__ == "__main__":
    main()
