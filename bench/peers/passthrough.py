"""What it costs to ask another server through liveedge, beside asking it directly.

    PYTHONPATH=src:bench python -m peers.passthrough --base-url http://127.0.0.1:8002/v1 --model ID

The provider runs already (`llama_server`, `vllm_server`, or any other). Both sides ask about the same
frames of the workcell, new ones each time, in turns: directly with JPEG data URLs made beforehand,
through liveedge with an `ovs://` reference, so that its side looks up, encodes and relays.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from liveedge.core.clock import SystemClock
from liveedge.media.picture import encode_picture
from liveedge.server import BackgroundServer
from liveedge.settings import Settings
from liveedge.sim.render import Renderer
from liveedge.sim.scene import Workcell
from liveedge.testing.engine import FakeEngine

QUESTION = "Is the lamp on?"


@dataclass
class Side:
    """What one way to ask took."""

    first_ms: list[float] = field(default_factory=list)
    total_ms: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)

    def ask(self, client: httpx.Client, url: str, body: dict[str, Any]) -> None:
        began_s = time.perf_counter()
        first_s, text, spent = 0.0, "", 0
        with client.stream("POST", url, json=body) as response:
            if response.status_code != 200:
                raise SystemExit(f"{response.status_code}: {response.read()[:500]!r}")
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                spent = (chunk.get("usage") or {}).get("prompt_tokens", spent)
                said = [c["delta"].get("content") or "" for c in chunk["choices"]]
                if any(said) and not first_s:
                    first_s = time.perf_counter()
                text += "".join(said)
        self.first_ms.append((first_s - began_s) * 1000)
        self.total_ms.append((time.perf_counter() - began_s) * 1000)
        self.texts.append(text)
        self.prompt_tokens.append(spent)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base-url", required=True, help="of the provider, up to /v1")
    parser.add_argument("--model", required=True, help="its id there")
    parser.add_argument("--questions", type=int, default=9)
    parser.add_argument("--frames", type=int, default=1, help="pictures of a question")
    parser.add_argument("--media", choices=("images", "video"), default="images")
    options = parser.parse_args()
    provider = {
        "base_url": options.base_url,
        "models": [options.model],
        "media": options.media,
        "timeout": 600,
    }
    clock = SystemClock()
    settings = Settings(port=0, providers={"peer": provider}, timeout_ms=600_000, streams_mb=600)
    direct, through = Side(), Side()
    with (
        BackgroundServer(
            settings, clock=clock, load_engine=lambda: FakeEngine(clock=clock)
        ) as ours,
        httpx.Client(timeout=600, trust_env=False) as client,
    ):
        stream = client.post(f"{ours.url}/streams", json={"source": {"type": "push"}}).json()["id"]
        renderer = Renderer(Workcell(seed=1), width=640, height=480)
        for i in range(options.questions + 1):
            jpegs = []
            for j in range(options.frames):
                t_s = (i * options.frames + j) / 2
                rgb = renderer.render(i * options.frames + j, t_s, round(t_s * 1000))
                jpegs.append(encode_picture(rgb, "jpeg", quality=90))
                # As PNG: the pixels that both sides encode are the same.
                png = encode_picture(rgb, "png")
                client.post(f"{ours.url}/streams/{stream}/frames", content=png).raise_for_status()
            sides = [(direct, options.base_url, _pictures(jpegs))]
            sides += [(through, f"{ours.url}/v1", _references(stream, options))]
            for side, url, media in sides if i % 2 else sides[::-1]:
                side.ask(client, f"{url}/chat/completions", _body(media, options))
    print(json.dumps(_result(direct, through)))
    return 0


def _pictures(jpegs: list[bytes]) -> list[dict[str, Any]]:
    urls = [f"data:image/jpeg;base64,{base64.b64encode(data).decode()}" for data in jpegs]
    return [{"type": "image_url", "image_url": {"url": url}} for url in urls]


def _references(stream: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    if options.media == "video":
        url = f"ovs://streams/{stream}?start_frame_index=-{options.frames}&max_fps=240"
        return [{"type": "video_url", "video_url": {"url": url}}]
    urls = [f"ovs://streams/{stream}?frame_index=-{n}" for n in range(options.frames, 0, -1)]
    return [{"type": "image_url", "image_url": {"url": url}} for url in urls]


def _body(media: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    # Another question each time and side: no prefix cache of the provider answers for one of them.
    content = [{"type": "text", "text": f"{time.perf_counter_ns()}"}, *media]
    content.append({"type": "text", "text": QUESTION})
    return {
        "model": options.model,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _result(direct: Side, through: Side) -> dict[str, Any]:
    def medians(values: list[float]) -> float:
        return round(statistics.median(values[1:]), 1)  # the first one warms both up

    return {
        "first_ms": {"direct": medians(direct.first_ms), "through": medians(through.first_ms)},
        "total_ms": {"direct": medians(direct.total_ms), "through": medians(through.total_ms)},
        "first_ratio": round(medians(through.first_ms) / medians(direct.first_ms), 3),
        "questions": len(direct.texts) - 1,
        "prompt_tokens": [direct.prompt_tokens[-1], through.prompt_tokens[-1]],
        "texts": [direct.texts[-1], through.texts[-1]],
    }


if __name__ == "__main__":
    raise SystemExit(main())
