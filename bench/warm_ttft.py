"""Time to first token: stock transformers against liveedge, cold and warm, on the same weights.

    python bench/warm_ttft.py --model FOLDER --frames 8

One clip, one question, greedy, one process, sides alternating within each run:
stock    the reference's processor, then `generate` of one token
cold     ours, media never seen: load, preprocess, encode, prefill, one token
warm     ours, the same again: frames encoded, prefix resident; what is left is the last token
limit    that last token alone: one forward pass over the full context on the bare modules
Before anything is timed, both sides must read the same number of tokens and give the same first one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.video_utils import VideoMetadata

from liveedge.core.clock import SystemClock
from liveedge.engine.client import load_engine
from liveedge.engine.interface import Engine, EngineSettings, PreparedRequest
from liveedge.engine.request import (
    Delta,
    Failed,
    Finished,
    FrameInput,
    GenerateRequest,
    Message,
    SamplingParams,
    TextPart,
    VideoPart,
)
from liveedge.models.loader import load_model
from liveedge.models.qwen3_vl.weights import Qwen3VL
from liveedge.sim.questions import TEST_SEEDS
from liveedge.sim.render import Renderer
from liveedge.sim.scene import Workcell
from report import finish, table

SHIPPED = Path(__file__).resolve().parent.parent / "src/liveedge/assets/workcell-tiny"
QUESTION = "Which way is the belt moving?"
FPS = 2.0
Picture = NDArray[np.uint8]


class Stock:
    """The reference, used as its documentation says, with frames that are sampled already."""

    def __init__(self, folder: Path) -> None:
        library: Any = transformers  # ships few types
        library.logging.set_verbosity_error()
        self._processor: Any = library.AutoProcessor.from_pretrained(folder)
        self._model: Any = library.AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.float32
        ).eval()
        content = [{"type": "video"}, {"type": "text", "text": QUESTION}]
        self._messages = [{"role": "user", "content": content}]

    def first_token(self, frames: Sequence[Picture]) -> tuple[int, int]:
        """(tokens read, first token)."""
        text = self._processor.apply_chat_template(
            self._messages, add_generation_prompt=True, tokenize=False
        )
        times: Any = [index / FPS for index in range(len(frames))]
        # At one frame per second the reference's time of a frame is its index, here any number.
        metadata = VideoMetadata(total_num_frames=len(frames), fps=1.0, frames_indices=times)
        inputs = self._processor(
            text=[text],
            videos=[np.stack(frames)],
            video_metadata=[metadata],
            do_sample_frames=False,
            return_tensors="pt",
        )
        with torch.inference_mode():
            out = self._model.generate(**inputs, max_new_tokens=1, do_sample=False)
        n_read = inputs["input_ids"].shape[1]
        return n_read, int(out[0, n_read])

    def text_of(self, token: int) -> str:
        """What a reader sees of it: an end-of-answer token is no text."""
        text: str = self._processor.tokenizer.decode([token], skip_special_tokens=True)
        return text


class Ours:
    """The engine as the server uses it, from prepared values to the first delta."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._n_requests = 0

    async def first_token(self, frames: Sequence[Picture], name: str) -> tuple[int, float]:
        """(tokens reused, ms until the first token existed). Equal names are equal pictures."""
        begun = time.perf_counter()
        prepared = self.prepare(frames, name)
        first_ms = 0.0
        reused = 0
        async with contextlib.aclosing(self._engine.generate(prepared)) as events:
            async for event in events:
                match event:
                    case Delta():
                        first_ms = first_ms or (time.perf_counter() - begun) * 1000
                    case Finished(usage=usage):
                        first_ms = first_ms or (time.perf_counter() - begun) * 1000
                        reused = usage.cached_tokens
                    case Failed(error=error):
                        raise error
        return reused, first_ms

    def prepare(self, frames: Sequence[Picture], name: str) -> PreparedRequest:
        self._n_requests += 1
        inputs = tuple(
            FrameInput(
                key=f"{name}/{index}",
                width=frame.shape[1],
                height=frame.shape[0],
                load=functools.partial(np.asarray, frame),
                time_s=index / FPS,
            )
            for index, frame in enumerate(frames)
        )
        message = Message(role="user", content=(VideoPart(frames=inputs), TextPart(QUESTION)))
        return self._engine.prepare(
            GenerateRequest(
                request_id=f"bench-{self._n_requests}",
                messages=(message,),
                sampling=SamplingParams(max_tokens=1),
            )
        )


class Limit:
    """The least that any engine must do: the last token through every layer, and its logits."""

    def __init__(self, model: Qwen3VL, prepared: PreparedRequest) -> None:
        self._text = model.text
        config = model.text.config
        n_before = prepared.n_tokens - 1
        shape = (config.n_layers, 1, config.n_kv_heads, n_before + 1, config.head_dim)
        self._k, self._v = torch.randn(shape), torch.randn(shape)  # contents do not change the work
        self._ids = torch.from_numpy(prepared.ids[-1:].copy())[None]
        self._positions = torch.from_numpy(prepared.positions[:, -1:].copy())[:, None]

    def first_token(self) -> int:
        with torch.inference_mode():
            embeds = self._text.embed(self._ids)
            hidden = self._text(embeds, self._positions, self._attend)
            return int(self._text.logits(hidden[:, -1]).argmax())

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._k[layer, :, :, -1:] = k
        self._v[layer, :, :, -1:] = v
        return scaled_dot_product_attention(
            q, self._k[layer], self._v[layer], enable_gqa=q.shape[1] != k.shape[1]
        )


def clip(n_frames: int, width: int, height: int) -> list[Picture]:
    renderer = Renderer(Workcell(TEST_SEEDS.start), width=width, height=height)
    return [renderer.render(i, 5.0 + i / FPS, 0) for i in range(n_frames)]


def timed_ms(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1000


async def measure(options: argparse.Namespace) -> dict[str, list[float]]:
    frames = clip(options.frames, options.width, options.height)
    settings = EngineSettings(device="cpu", n_slots=4, threads=torch.get_num_threads())
    engine = load_engine(options.model, settings=settings, clock=SystemClock())
    try:
        await engine.ready()
        stock, ours = Stock(options.model), Ours(engine)
        prepared = ours.prepare(frames, "check")
        await check(stock, engine, prepared, frames)
        model = load_model(options.model, device=torch.device("cpu"), dtype=torch.float32)
        limit = Limit(model, prepared)
        limit.first_token()
        times: dict[str, list[float]] = {"stock": [], "cold": [], "warm": [], "limit": []}
        for run in range(options.runs):
            times["stock"].append(timed_ms(lambda: stock.first_token(frames)))
            cold_reused, cold_ms = await ours.first_token(frames, f"run {run}")
            reused, warm_ms = await ours.first_token(frames, f"run {run}")
            if reused <= cold_reused:
                raise SystemExit(f"not warm: {reused} tokens reused, {cold_reused} when cold")
            times["cold"].append(cold_ms)
            times["warm"].append(warm_ms)
            times["limit"].append(timed_ms(limit.first_token))
        return times
    finally:
        engine.close()


async def check(
    stock: Stock, engine: Engine, prepared: PreparedRequest, frames: Sequence[Picture]
) -> None:
    """Both sides must do the same work, or the ratio says nothing."""
    n_stock, token = stock.first_token(frames)
    if n_stock != prepared.n_tokens:
        raise SystemExit(f"stock reads {n_stock} tokens, ours {prepared.n_tokens}: not comparable")
    text = ""
    async with contextlib.aclosing(engine.generate(prepared)) as events:
        async for event in events:
            if isinstance(event, Delta):
                text += event.text
    expected = stock.text_of(token)  # the engine gives text, not ids
    if text != expected:
        raise SystemExit(f"first token: stock {expected!r}, ours {text!r}: not comparable")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=SHIPPED, help="checkpoint folder")
    parser.add_argument("--frames", type=int, default=8, help="even: frames are encoded in pairs")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--width", type=int, default=640)
    parser.add_argument("--height", type=int, default=480)
    parser.add_argument("--quick", action="store_true", help="two runs, to see that it works")
    options = parser.parse_args()
    if options.frames < 2 or options.frames % 2:
        parser.error(f"--frames is {options.frames}, needs to be even and at least 2")
    options.runs = 2 if options.quick else options.runs
    times = asyncio.run(measure(options))
    median = {side: statistics.median(values) for side, values in times.items()}
    ratio = {side: median["stock"] / median[side] for side in median}
    columns = ("side", "median ms", "best ms", "stock / side")
    table(columns, [(side, median[side], min(times[side]), ratio[side]) for side in median])
    finish(
        {
            "model": options.model.name,
            "frames": options.frames,
            **{f"{side}_ms": median[side] for side in ("stock", "cold", "warm", "limit")},
            **{f"{side}_ratio": ratio[side] for side in ("cold", "warm", "limit")},
        }
    )


if __name__ == "__main__":
    main()
