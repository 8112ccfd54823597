"""What the engine does on a GPU, in under six minutes, and whether it is right.

    PYTHONPATH=src python bench/gpu_check.py
    PYTHONPATH=src python bench/gpu_check.py --device cpu --quick      # see that it works

Needs torch, numpy, safetensors and tokenizers, and no checkpoint: weights are random and have the
shape of Qwen3-VL-2B. The engine's loop runs in this process, without HTTP; frames are random
pixels. Each section prints what it found when it is done, and is left out where too little of
--seconds is left, so a run that is cut still says something. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import statistics
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from liveedge.core.clock import SystemClock
from liveedge.core.errors import LiveEdgeError
from liveedge.core.mailbox import Mailbox
from liveedge.engine.compute.runner import TorchRunner
from liveedge.engine.decide.encoder_cache import EncoderCache
from liveedge.engine.decide.plan import EncodeBatch
from liveedge.engine.decide.prefix import prompt_identity
from liveedge.engine.decide.scheduler import Scheduler
from liveedge.engine.decide.slots import SlotTable
from liveedge.engine.interface import (
    EngineSettings,
    FeatureGroup,
    PreparedRequest,
    Warmed,
    WindowPrefix,
)
from liveedge.engine.memory.plan import Budget, MemoryAsked, ModelFacts, engine_lines
from liveedge.engine.memory.sizing import Sizing, model_shape, plan_sizes
from liveedge.engine.process.intake import Intake
from liveedge.engine.process.loop import EngineLoop
from liveedge.engine.process.messages import (
    DropFetch,
    EngineInput,
    Fetch,
    Fetched,
    Freed,
    Loaded,
    Submit,
    Warm,
)
from liveedge.engine.request import (
    Delta,
    Event,
    Failed,
    FrameInput,
    GenerateRequest,
    SamplingParams,
)
from liveedge.models.qwen3_vl.config import (
    PixelBudget,
    PixelConfig,
    Qwen3VLConfig,
    TextConfig,
    VisionConfig,
)
from liveedge.models.qwen3_vl.positions import mrope_positions
from liveedge.models.qwen3_vl.processor import Preprocessor
from liveedge.models.qwen3_vl.text import TextModel, causal
from liveedge.models.qwen3_vl.vision import VisionTower
from liveedge.models.qwen3_vl.weights import Qwen3VL
from liveedge.native import library
from report import finish, percentile, table

# The published config.json of Qwen3-VL-2B-Instruct; every figure here depends on the shape alone.
LARGE: Final = Qwen3VLConfig(
    text=TextConfig(
        vocab_size=151_936,
        hidden_size=2048,
        intermediate_size=6144,
        n_layers=28,
        n_heads=16,
        n_kv_heads=8,
        head_dim=128,
        rope_theta=5_000_000.0,
        mrope_section=(24, 20, 20),
        max_position=262_144,
        tied=True,
    ),
    vision=VisionConfig(
        depth=24,
        hidden_size=1024,
        intermediate_size=4096,
        n_heads=16,
        out_hidden_size=2048,
        n_positions=2304,
        deepstack_layers=(5, 11, 17),
    ),
)
TINY: Final = Qwen3VLConfig(
    text=TextConfig(
        vocab_size=2003,
        hidden_size=128,
        intermediate_size=256,
        n_layers=3,
        n_heads=4,
        n_kv_heads=2,
        head_dim=32,
        rope_theta=1e6,
        mrope_section=(6, 5, 5),
        max_position=4096,
        init_std=0.08,
    ),
    vision=VisionConfig(
        depth=3,
        hidden_size=64,
        intermediate_size=128,
        n_heads=4,
        out_hidden_size=128,
        n_positions=64,
        deepstack_layers=(0, 1),
        init_std=0.08,
    ),
    image_token_id=2000,
    video_token_id=2001,
    vision_start_token_id=2002,
    vision_end_token_id=1999,
)
PIXELS: Final = PixelConfig(
    image=PixelBudget(1024, 1 << 22), video=PixelBudget(1024, 1 << 22)
)  # no frame here is resized
VALUE_BYTES: Final = {torch.float32: 4, torch.bfloat16: 2}
EQUAL_LOGITS: Final = 1e-3  # float32, of the largest logit; kernels sum in another order
SKIPPED_STEPS: Final = 16  # of an answer: until then its graph is recorded
MARK_TOKENS: Final = 6  # of the time that stands before each group
PREAMBLE: Final = 12  # tokens before the first frame
GROUP_FRAMES: Final = 2

_Told = Event | Warmed


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is done."""

    config: Qwen3VLConfig
    frame_hw: tuple[int, int] = (480, 640)
    n_frames: int = 8
    n_runs: int = 7
    n_tokens: int = 96  # of the answers that are timed
    n_videos: int = 6  # that arrive while an answer runs
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)  # groups in one pass of the encoder
    max_model_len: int = 2048
    encoder_cache_bytes: int = 256 << 20
    encode_s: float = 2.0  # of measuring for each batch


QUICK: Final = Scale(
    config=TINY,
    frame_hw=(64, 96),
    n_frames=4,
    n_runs=2,
    n_tokens=SKIPPED_STEPS + 48,
    n_videos=2,
    batches=(1, 2),
    max_model_len=256,
    encoder_cache_bytes=4 << 20,
    encode_s=0.05,
)


# the engine in this process


class Letters:
    """No token ends an answer, and each writes one letter."""

    eos_ids: tuple[int, ...] = ()

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([ord("a") + token_id % 26])


@dataclass(slots=True)
class Answer:
    """What came of one request, in seconds of `time.perf_counter`."""

    sent_s: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # (s, tokens)
    text: str = ""
    ended: _Told | None = None

    @property
    def ttft_ms(self) -> float:
        return (self.arrivals[0][0] - self.sent_s) * 1000

    def gaps_ms(self, begin: int = 1) -> list[float]:
        """Times between tokens, from a token on."""
        times = [at for at, n in self.arrivals for _ in range(n)][begin - 1 :]
        return [(b - a) * 1000 for a, b in itertools.pairwise(times)]


class Local:
    """Scheduler, runner, loop and loading threads; turned by whoever asks."""

    def __init__(self, model: Qwen3VL, scale: Scale, *, use_graphs: bool = True) -> None:
        weight = model.text.embed_tokens.weight
        self.scale = scale
        self.model = model
        self.settings = EngineSettings(
            device="cuda" if weight.device.type == "cuda" else "cpu",
            max_model_len=scale.max_model_len,
            encoder_cache_bytes=scale.encoder_cache_bytes,
        )
        self.sizing: Sizing = plan_sizes(
            self.settings, model_shape(model.config), value_bytes=VALUE_BYTES[weight.dtype]
        )
        no_schemas: Any = None  # no answer here is held to one
        self.runner = TorchRunner(
            model,
            sizing=self.sizing,
            compiler=no_schemas,
            entropy=lambda: 1,
            lib=library.load() if weight.device.type == "cpu" else None,
            use_graphs=use_graphs,
        )
        self.preprocessor = Preprocessor(
            model.config.vision, PIXELS, pinned=weight.device.type == "cuda"
        )
        self.answers: dict[str, Answer] = {}
        self._groups: dict[str, FeatureGroup] = {}
        self._inbox: Mailbox[EngineInput] = Mailbox(10_000)
        self._intake = Intake(
            preprocess=self.preprocessor.preprocess,
            n_threads=2,
            send=self._fetch,
            done=self._loaded,
        )
        self._intake.start()
        self._loop = EngineLoop(
            scheduler=Scheduler(
                slots=SlotTable(
                    n_slots=self.sizing.n_slots,
                    n_windows=self.sizing.n_window_slots,
                    max_len=self.sizing.max_model_len,
                ),
                cache=EncoderCache(n_rows=self.sizing.feature_rows),
                limits=self.sizing.limits,
                vocabulary=Letters(),
            ),
            runner=self.runner,
            loader=self._intake,
            inbox=self._inbox,
            outside=self,
            clock=SystemClock(),
        )

    def close(self) -> None:
        self._intake.close()
        self.runner.close()

    def _fetch(self, message: Fetch | DropFetch | Freed) -> None:
        if isinstance(message, Fetch):
            frames = self._groups[message.key].frames
            self._intake.take(Fetched(message.ticket, tuple(frame.load() for frame in frames)))

    def _loaded(self, message: Loaded) -> None:
        self._accept(message)

    def _accept(self, message: EngineInput) -> None:
        if not self._inbox.offer(message):
            raise SystemExit("the inbox overflowed: more requests than this program makes")

    # what the loop tells

    def show(self, scheduler: Scheduler) -> None:
        """Nobody looks."""

    def deliver(self, events: list[tuple[str, _Told]]) -> None:
        now_s = time.perf_counter()
        for request_id, event in events:
            answer = self.answers[request_id]
            if isinstance(event, Delta):
                answer.arrivals.append((now_s, event.n_tokens))
                answer.text += event.text
            else:
                answer.ended = event

    def left_queue(self, request_ids: Iterable[str]) -> None:
        """Nobody counts."""

    def released(self, request_ids: Iterable[str]) -> None:
        """The pixels stay: they are few."""

    def pong(self, number: int) -> None:
        """Nobody asks."""

    # asking

    def submit(self, prepared: PreparedRequest) -> Answer:
        answer = self._expect(prepared)
        self._accept(Submit(prepared, SystemClock().monotonic_s()))
        return answer

    def warm(self, window_id: str, prepared: PreparedRequest) -> None:
        """Make a window's prefix resident."""
        answer = self._expect(prepared)
        prefix = WindowPrefix(window_id=window_id, prepared=prepared)
        self._accept(Warm(prefix, SystemClock().monotonic_s()))
        self.finish(answer)

    def ask(self, prepared: PreparedRequest) -> Answer:
        answer = self.submit(prepared)
        self.finish(answer)
        return answer

    def finish(self, *answers: Answer) -> None:
        """Turn until these ended."""
        while any(answer.ended is None for answer in answers):
            self.turn()
        for answer in answers:
            if isinstance(answer.ended, Failed):
                raise answer.ended.error

    def turn(self) -> None:
        self._loop.read_inbox()
        if not self._loop.turn():
            self._inbox.wait(0.05)

    def _expect(self, prepared: PreparedRequest) -> Answer:
        self._groups |= {group.key: group for group in prepared.groups}
        answer = Answer(time.perf_counter())
        self.answers[prepared.request.request_id] = answer
        return answer


class Prompts:
    """Prompts of random words and frames; equal keys are equal frames."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._random = np.random.default_rng(7)
        self._n_made = 0

    def words(self, n: int) -> NDArray[np.int64]:
        """None of them is a placeholder."""
        return self._random.integers(0, self._scale.config.text.vocab_size // 2, n)

    def video(self, name: str) -> list[str]:
        """Keys of the groups of one video."""
        return [f"{name} {number}" for number in range(self._scale.n_frames // GROUP_FRAMES)]

    def request(
        self,
        keys: Sequence[str],
        words: NDArray[np.int64],
        *,
        max_tokens: int = 1,
        preamble: NDArray[np.int64] | None = None,
    ) -> PreparedRequest:
        """Preamble, frames, words. Equal preambles and keys are a common prefix."""
        config = self._scale.config
        height, width = self._scale.frame_hw
        side = config.vision.factor
        n_tokens = height * width // side**2
        pieces = [np.arange(PREAMBLE) if preamble is None else preamble]
        groups: list[FeatureGroup] = []
        for key in keys:
            pieces.append(np.arange(MARK_TOKENS))
            pieces.append(np.array([config.vision_start_token_id]))
            start = sum(map(len, pieces))
            pieces.append(np.full(n_tokens, config.video_token_id))
            pieces.append(np.array([config.vision_end_token_id]))
            groups.append(self._group(key, start, n_tokens))
        ids = np.concatenate([*pieces, words]).astype(np.int64)
        return self._prepared(ids, groups, max_tokens)

    def prefix(self, keys: Sequence[str], preamble: NDArray[np.int64]) -> PreparedRequest:
        """What a window holds: up to its last visual token."""
        whole = self.request(keys, self.words(1), preamble=preamble)
        return self._prepared(whole.ids[: whole.groups[-1].stop], list(whole.groups), 0)

    def _prepared(
        self, ids: NDArray[np.int64], groups: list[FeatureGroup], max_tokens: int
    ) -> PreparedRequest:
        self._n_made += 1
        height, width = self._scale.frame_hw
        side = self._scale.config.vision.factor
        positions, delta = mrope_positions(
            len(ids), [(group.start, height // side, width // side) for group in groups]
        )
        return PreparedRequest(
            request=GenerateRequest(
                request_id=f"check-{self._n_made}",
                messages=(),
                sampling=SamplingParams(max_tokens=max_tokens),
            ),
            ids=ids,
            positions=positions,
            position_delta=delta,
            identity=prompt_identity(ids, [(g.start, g.n_tokens, g.key) for g in groups]),
            groups=tuple(groups),
            image_tokens=sum(group.n_tokens for group in groups),
            max_new_tokens=max_tokens,
        )

    def _group(self, key: str, start: int, n_tokens: int) -> FeatureGroup:
        height, width = self._scale.frame_hw
        frames = tuple(
            FrameInput(
                key=f"{key} {number}",
                width=width,
                height=height,
                load=partial(np.asarray, _pixels(f"{key} {number}", height, width)),
            )
            for number in range(GROUP_FRAMES)
        )
        return FeatureGroup(
            key=key, frames=frames, height=height, width=width, start=start, n_tokens=n_tokens
        )


def _pixels(key: str, height: int, width: int) -> NDArray[np.uint8]:
    random = np.random.default_rng(list(key.encode()))
    return random.integers(0, 256, (height, width, 3), dtype=np.uint8)


def random_model(config: Qwen3VLConfig, device: str, dtype: torch.dtype) -> Qwen3VL:
    """Weights made where they are used."""
    torch.manual_seed(5)
    with _default_dtype(dtype), torch.device(device):
        vision, text = VisionTower(config.vision), TextModel(config.text)
    for module in (vision, text):
        module.requires_grad_(requires_grad=False).eval()
    return Qwen3VL(config, PIXELS, vision, text)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def moved(model: Qwen3VL, device: str, dtype: torch.dtype) -> Qwen3VL:
    """The same weights elsewhere."""
    vision, text = VisionTower(model.config.vision), TextModel(model.config.text)
    vision.load_state_dict(model.vision.state_dict())
    text.load_state_dict(model.text.state_dict())
    for module in (vision, text):
        module.to(device, dtype).requires_grad_(requires_grad=False).eval()
    return replace(model, vision=vision, text=text)


# the sections


class Check:
    """The figures so far, and what is left of the time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.device: str = options.device
        self.scale: Scale = QUICK if options.quick else Scale(config=LARGE)
        self.dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        self.figures: dict[str, Any] = {"device": self.device, "left_out": [], "failed": []}
        self._until_s = time.perf_counter() + options.seconds

    @property
    def left_s(self) -> float:
        return self._until_s - time.perf_counter()

    def section(self, name: str, least_s: float, work: Callable[[], None]) -> None:
        """Do it if there is time; what goes wrong in one does not end the others."""
        if self.left_s < least_s:
            print(f"{name}: left out, {self.left_s:.0f} s are left of --seconds\n", flush=True)
            self.figures["left_out"].append(name)
            return
        begun_s = time.perf_counter()
        print(f"{name}:", flush=True)
        try:
            work()
        except (LiveEdgeError, RuntimeError, ValueError, AssertionError) as error:
            traceback.print_exception(error, file=sys.stdout)
            self.figures["failed"].append(name)
        print(f"  ({time.perf_counter() - begun_s:.1f} s)\n", flush=True)


def equality(check: Check) -> None:
    """A tiny model here and on the CPU: logits of a forward pass, tokens of the whole engine."""
    scale = replace(QUICK, n_tokens=2 * SKIPPED_STEPS)
    reference = random_model(TINY, "cpu", torch.float32)
    here = moved(reference, check.device, torch.float32)
    ids = torch.from_numpy(Prompts(scale).words(90))[None]
    expected = _logits(reference, ids)
    largest = float(expected.abs().max())
    difference = float((_logits(here, ids) - expected).abs().max()) / largest
    answers = [_greedy(model, scale) for model in (reference, here)]
    print(f"  float32: logits differ by {difference:.2g} of the largest, ", end="")
    print("tokens are equal" if answers[0] == answers[1] else f"tokens differ: {answers}")
    rounded = moved(reference, check.device, torch.bfloat16)
    found = _logits(rounded, ids)
    agreeing = float((found.argmax(-1) == expected.argmax(-1)).float().mean())
    rounding = float((found - expected).abs().max()) / largest
    print(f"  bfloat16: logits differ by {rounding:.2g}, {agreeing:.0%} of best tokens agree")
    equal = answers[0] == answers[1] and difference <= EQUAL_LOGITS
    check.figures |= {
        "equal": equal,
        "logits_difference": f"{difference:.2g}",
        "logits_difference_bfloat16": f"{rounding:.2g}",
    }
    if not equal:
        raise ValueError(f"not what a CPU computes: {difference} > {EQUAL_LOGITS}, or the tokens")


@torch.inference_mode()
def _logits(model: Qwen3VL, ids: torch.Tensor) -> torch.Tensor:
    text = model.text
    device = text.embed_tokens.weight.device
    positions = torch.arange(ids.shape[1], device=device).expand(3, 1, -1)
    return text.logits(text(text.embed(ids.to(device)), positions, causal)).float().cpu()


def _greedy(model: Qwen3VL, scale: Scale) -> list[str]:
    """Three answers at once, two of them about one video, through every part of the engine."""
    local, prompts = Local(model, scale), Prompts(scale)
    video = prompts.video("a")
    asked = [prompts.request(keys, prompts.words(9), max_tokens=32) for keys in (video, video, ())]
    answers = [local.submit(prepared) for prepared in asked]
    local.finish(*answers)
    local.close()
    return [answer.text for answer in answers]


def first_tokens(check: Check, local: Local, prompts: Prompts) -> None:
    """Time to the first token: nothing known, and a warm window that is asked something new."""
    cold, warm = [], []
    for run in range(check.scale.n_runs + 1):
        keys, preamble = prompts.video(f"ttft {run}"), prompts.words(PREAMBLE)
        found = local.ask(prompts.request(keys, prompts.words(20), preamble=preamble))
        keys, preamble = prompts.video(f"window {run}"), prompts.words(PREAMBLE)
        local.warm("window", prompts.prefix(keys, preamble))
        again = local.ask(prompts.request(keys, prompts.words(20), preamble=preamble))
        if run:  # the first pays for kernels that are loaded at their first use
            cold.append(found.ttft_ms)
            warm.append(again.ttft_ms)
    name = f"{check.scale.n_frames} frames of {_size(check.scale)}"
    table(
        (name, "cold ms", "warm ms", "cold / warm"),
        [("median", *(medians := _medians(cold, warm)), medians[0] / medians[1])],
    )
    check.figures |= {"cold_ttft_ms": medians[0], "warm_ttft_ms": medians[1]}


def between_tokens(check: Check, local: Local, prompts: Prompts) -> None:
    """Times between the tokens of an answer, alone and while videos arrive."""
    n_tokens = check.scale.n_tokens
    idle = local.ask(prompts.request((), prompts.words(40), max_tokens=n_tokens))
    running = local.submit(
        prompts.request((), prompts.words(41), max_tokens=check.scale.max_model_len // 2)
    )
    while len(running.arrivals) < SKIPPED_STEPS:
        local.turn()
    n_before = sum(n for _, n in running.arrivals)
    for number in range(check.scale.n_videos):
        keys = prompts.video(f"itl {number}")
        other = local.submit(
            prompts.request(keys, prompts.words(20), preamble=prompts.words(PREAMBLE))
        )
        local.finish(other)
    loaded_ms = running.gaps_ms(n_before)
    local.finish(running)
    idle_ms = idle.gaps_ms(SKIPPED_STEPS)
    rows = [
        (name, statistics.median(gaps), percentile(gaps, 95), max(gaps))
        for name, gaps in (("idle", idle_ms), ("videos arriving", loaded_ms))
    ]
    table(("between tokens", "median ms", "p95 ms", "longest ms"), rows)
    check.figures |= {
        "itl_idle_ms": rows[0][1],
        "itl_video_ms": rows[1][1],
        "itl_video_p95_ms": rows[1][2],
        "itl_ratio": rows[1][1] / rows[0][1],
    }


def encoder(check: Check, local: Local) -> None:
    """Groups per second, by the number of groups in one pass."""
    height, width = check.scale.frame_hw
    n_tokens = height * width // check.scale.config.vision.factor**2
    frames = [_pixels(f"sweep {number}", height, width) for number in range(GROUP_FRAMES)]
    patches = local.preprocessor.preprocess(frames, size=(height, width))
    speeds: dict[int, float] = {}
    for n in check.scale.batches:
        if n * n_tokens > local.sizing.feature_rows:
            print(f"  {n} groups: more than the features' memory holds")
            continue
        batch = EncodeBatch(
            keys=tuple(map(str, range(n))),
            patches=(patches,) * n,
            rows=tuple(np.arange(i * n_tokens, (i + 1) * n_tokens) for i in range(n)),
            sizes=((height, width),) * n,
        )
        local.runner.encode(batch)
        begun_s, done = time.perf_counter(), 0
        while done < 2 or time.perf_counter() - begun_s < check.scale.encode_s:
            local.runner.encode(batch)  # returns when the device is done
            done += 1
        speeds[n] = n * done / (time.perf_counter() - begun_s)
    table(
        (f"groups of {_size(check.scale)} at once", "groups/s", "ms per pass"),
        [(str(n), speed, 1000 * n / speed) for n, speed in speeds.items()],
    )
    check.figures["encode_groups_s"] = {str(n): speed for n, speed in speeds.items()}


def decoding(check: Check, model: Qwen3VL) -> None:
    """Tokens per second of 1, 4 and 8 answers, launched step by step and by recorded steps."""
    speeds: dict[str, dict[int, float]] = defaultdict(dict)
    for name, use_graphs in (("eager", False), ("graphs", True)):
        local, prompts = Local(model, check.scale, use_graphs=use_graphs), Prompts(check.scale)
        for n in (1, 4, 8):
            speeds[name][n] = max(_tokens_per_s(check, local, prompts, n) for _ in range(2))
        local.close()
        del local
        _free()
    table(
        ("answers at once", "eager tokens/s", "graphs tokens/s", "graphs / eager"),
        [
            (str(n), eager, speeds["graphs"][n], speeds["graphs"][n] / eager)
            for n, eager in speeds["eager"].items()
        ],
    )
    for name, found in speeds.items():
        check.figures[f"decode_{name}_tok_s"] = {str(n): speed for n, speed in found.items()}


def _tokens_per_s(check: Check, local: Local, prompts: Prompts, n: int) -> float:
    """Of answers that all run; prompts and the first steps are left out."""
    asked = [
        prompts.request((), prompts.words(100), max_tokens=check.scale.n_tokens) for _ in range(n)
    ]
    answers = [local.submit(prepared) for prepared in asked]
    local.finish(*answers)
    begin_s = max(answer.arrivals[SKIPPED_STEPS][0] for answer in answers)
    end_s = min(answer.arrivals[-1][0] for answer in answers)
    n_tokens = sum(
        count for answer in answers for at, count in answer.arrivals if begin_s < at <= end_s
    )
    return n_tokens / (end_s - begin_s) if end_s > begin_s else math.nan


def memory(check: Check, local: Local) -> None:
    """The plan beside what was taken at most."""
    tensors = [*local.model.text.parameters(), *local.model.vision.parameters()]
    facts = ModelFacts(
        config=check.scale.config,
        shape=model_shape(check.scale.config),
        n_values=sum(tensor.numel() for tensor in tensors),
        largest_values=max(tensor.numel() for tensor in tensors),
        tokenizer_bytes=0,
    )
    asked = MemoryAsked(
        engine=local.settings,
        server=None,
        budget=Budget(n_bytes=1, how="", most_bytes=1),
        device="cuda",
    )
    lines = [
        line
        for line in engine_lines(asked, facts, local.sizing)
        if line.place == "device" and line.name != "CUDA"  # which torch does not count
    ]
    planned_mb = sum(line.n_bytes for line in lines) / 1e6
    table(("planned", "MB"), [(line.name, line.n_bytes / 1e6) for line in lines])
    check.figures["planned_mb"] = planned_mb
    if check.device == "cuda":
        taken_mb = torch.cuda.max_memory_allocated() / 1e6
        kept_mb = torch.cuda.max_memory_reserved() / 1e6
        print(f"  planned {planned_mb:.0f} MB, taken {taken_mb:.0f}, kept by torch {kept_mb:.0f}")
        check.figures |= {"taken_mb": taken_mb, "kept_mb": kept_mb}


def _medians(*series: Sequence[float]) -> tuple[float, ...]:
    return tuple(map(statistics.median, series))


def _size(scale: Scale) -> str:
    return f"{scale.frame_hw[1]}x{scale.frame_hw[0]}"


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def run(check: Check) -> None:
    """All sections, the surest first."""
    check.section("equality with a CPU", 10, lambda: equality(check))
    _free()
    begun_s = time.perf_counter()
    model = random_model(check.scale.config, check.device, check.dtype)
    print(f"random weights: {time.perf_counter() - begun_s:.1f} s\n", flush=True)
    serving(check, model)
    _free()
    check.section("decoding", 30, lambda: decoding(check, model))


def serving(check: Check, model: Qwen3VL) -> None:
    """The sections that ask one engine, which is gone afterwards."""
    local, prompts = Local(model, check.scale), Prompts(check.scale)
    check.section("first tokens", 20, lambda: first_tokens(check, local, prompts))
    check.section("between tokens", 20, lambda: between_tokens(check, local, prompts))
    check.section("memory", 1, lambda: memory(check, local))  # before more than a step may encode
    check.section("encoder", 20, lambda: encoder(check, local))
    local.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=330.0, help="of all sections together")
    parser.add_argument("--quick", action="store_true", help="a tiny model, to see that it works")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch finds no CUDA device here: use --device cpu --quick")
    check = Check(options)
    where = torch.cuda.get_device_name() if check.device == "cuda" else "CPU"
    print(f"torch {torch.__version__} on {where}\n", flush=True)
    if library.load() is None:
        print("no native kernels, so preprocessing is slow: python -m liveedge.native.build\n")
    check.figures |= {"torch": torch.__version__, "name": where}
    run(check)
    finish(check.figures)
    if check.figures["failed"]:
        raise SystemExit(f"failed: {', '.join(check.figures['failed'])}")


if __name__ == "__main__":
    main()
