"""The memory plan: every pool of both processes with its size and its reason, before any is made.

Torch-free and pure: the same settings, checkpoint and budget give the same plan. Nothing is tried
out: pools are allocated from these numbers and never grow, and what does not fit the budget is
refused at the start with what would fit (`fitting`).

Two kinds of lines are no pools: libraries (measured, a constant) and the workspace of a step (the
largest tensors of the largest step, from the bounds of a step). Both are stated upper estimates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from liveedge.engine.interface import EngineSettings
from liveedge.engine.memory.sizing import ModelShape, Sizing, model_shape, plan_sizes
from liveedge.models.headers import tensor_values
from liveedge.models.qwen3_vl.config import Qwen3VLConfig, load_config

Place: TypeAlias = Literal["engine", "server", "shared", "device"]
Device: TypeAlias = Literal["cpu", "cuda"]

VALUE_BYTES: Final[dict[Device, int]] = {"cpu": 4, "cuda": 2}  # of one stored number
VALUE_NAMES: Final[dict[Device, str]] = {"cpu": "float32", "cuda": "bfloat16"}
DEVICES: Final[dict[Device, str]] = {"cpu": "processor", "cuda": "GPU"}
PLACES: Final[dict[Place, str]] = {
    "engine": "engine process",
    "server": "server process",
    "shared": "shared memory",
    "device": "GPU",
}
MIB: Final = 1 << 20

# Resident after `import torch` and our own imports, and what their allocators keep: torch 2.14 for
# CPU takes 520 MB. With CUDA the libraries and the context are several times that; an estimate.
ENGINE_LIBRARIES: Final[dict[Device, int]] = {"cpu": 600 * MIB, "cuda": 3072 * MIB}
DEVICE_CONTEXT: Final = 768 * MIB  # an estimate: context, libraries' workspaces
GRAPH_POOL: Final = 256 * MIB  # an estimate: what recorded steps share, and their own descriptions
SERVER_LIBRARIES: Final = 192 * MIB  # web server, codecs, threads and what their allocators keep
# The imports of an engine process, and nothing else: 290 MB of its own; the files of the libraries
# are in memory once for both.
STANDBY: Final = 320 * MIB
CAMERA: Final = 32 * MIB  # decoder, frames in its hands, threads: 1080p H.264 takes about so much
# `tokenizer.json` of 8.2 MB (150,000 tokens) takes 106 MB as a tokenizer and 26 MB as bytes.
TOKENIZER_FACTOR: Final = 18
DECODERS: Final = 4  # workers that decode pictures, uploaded and pushed
DECODING: Final = 4 * 24_000_000  # bytes beside the result, for a picture of 24 megapixels
BODY_FACTOR: Final = 3  # a request body as bytes, as text, and its pictures out of base64
KEPT_LOGITS: Final = 16  # rows of an answer that may be verified

# What is left to us is shared: of the whole budget, and never more than is of use.
BODIES_SHARE, BODIES_MOST = 1 / 32, 512 * MIB
DECODED_SHARE, DECODED_MOST = 1 / 16, 1024 * MIB
DECODED_LEAST = 192 * MIB  # one picture of the largest size that is accepted
STREAMS_MOST = 4096 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a checkpoint folder tells without its weights."""

    config: Qwen3VLConfig
    shape: ModelShape
    n_values: int  # of all weights
    largest_values: int  # of one tensor
    tokenizer_bytes: int  # the file


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPools:
    """What the server process is asked to hold. None: what the budget has room for."""

    max_streams: int
    hot_bytes: int  # per stream
    history_bytes: int  # per stream
    streams_bytes: int | None
    max_body_bytes: int
    bodies_bytes: int | None
    decoded_bytes: int | None
    watches_bytes: int = 0  # bodies and newest events of standing questions
    publishers_bytes: int = 0  # request bodies of publishers

    @property
    def stream_bytes(self) -> int:
        return self.hot_bytes + self.history_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What there is, and in whose words."""

    n_bytes: int
    how: str  # "--memory" or "90 % of this machine's 23.5 GiB"
    most_bytes: int  # the machine's, or its container's
    device_free_bytes: int | None = None  # of the GPU; None: not known here, or no GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAsked:
    """Everything that a plan is made from, besides the model."""

    engine: EngineSettings
    server: ServerPools | None  # None: the engine alone
    budget: Budget
    device: Device
    is_separate: bool = True  # the engine has a process of its own
    has_standby: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One pool."""

    name: str
    n_bytes: int
    place: Place
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What will be taken, and from what."""

    engine_lines: tuple[Line, ...]
    server_lines: tuple[Line, ...]
    budget: Budget
    sizing: Sizing
    bodies_bytes: int = 0
    decoded_bytes: int = 0
    streams_bytes: int = 0

    @property
    def lines(self) -> tuple[Line, ...]:
        return self.engine_lines + self.server_lines

    @property
    def host_bytes(self) -> int:
        return _host_bytes(self.lines)

    @property
    def device_bytes(self) -> int:
        return sum(line.n_bytes for line in self.lines if line.place == "device")

    @property
    def fits_host(self) -> bool:
        return self.host_bytes <= self.budget.n_bytes

    @property
    def fits_device(self) -> bool:
        free = self.budget.device_free_bytes
        return free is None or self.device_bytes <= free

    def table(self) -> str:
        """For people: every line under the process that holds it."""
        head = f"{human(self.host_bytes)} of {human(self.budget.n_bytes)} ({self.budget.how})"
        rows = [f"memory plan: {head}"]
        for place, title in PLACES.items():
            lines = [line for line in self.lines if line.place == place]
            if lines:
                total = sum(line.n_bytes for line in lines)
                rows.append(f"  {title:<20}{human(total):>10}{self._free(place)}")
                rows += [f"    {one.name:<18}{human(one.n_bytes):>10}  {one.how}" for one in lines]
        return "\n".join(rows)

    def _free(self, place: Place) -> str:
        free = self.budget.device_free_bytes if place == "device" else None
        return "" if free is None else f"  of {human(free)} free"


def read_facts(folder: Path) -> ModelFacts:
    """From `config.json` and the headers of the weights: milliseconds. Raises CheckpointInvalid."""
    config = load_config(folder)
    tied = config.text.tied
    values = {
        name: count
        for name, count in tensor_values(folder).items()
        if not (name.endswith("inv_freq") or (tied and name == "lm_head.weight"))
    }
    tokenizer = folder / "tokenizer.json"
    return ModelFacts(
        config=config,
        shape=model_shape(config),
        n_values=sum(values.values()),
        largest_values=max(values.values(), default=0),
        tokenizer_bytes=tokenizer.stat().st_size if tokenizer.exists() else 0,
    )


def plan_memory(asked: MemoryAsked, facts: ModelFacts) -> MemoryPlan:
    """The plan, whether it fits or not. Raises SettingsInvalid where no sizes can be found."""
    sizing = plan_sizes(asked.engine, facts.shape, value_bytes=VALUE_BYTES[asked.device])
    engine = engine_lines(asked, facts, sizing)
    pools, budget = asked.server, asked.budget
    if pools is None:
        return MemoryPlan(engine_lines=engine, server_lines=(), budget=budget, sizing=sizing)
    bodies = _or_share(
        pools.bodies_bytes, int(budget.n_bytes * BODIES_SHARE), pools.max_body_bytes, BODIES_MOST
    )
    decoded = _or_share(
        pools.decoded_bytes, int(budget.n_bytes * DECODED_SHARE), DECODED_LEAST, DECODED_MOST
    )
    server = tuple(_server_lines(facts, pools, bodies, decoded))
    rest = budget.n_bytes - _host_bytes(engine + server)
    streams = _streams_bytes(pools, rest)
    return MemoryPlan(
        engine_lines=engine,
        server_lines=(*server, *_stream_lines(pools, streams)),
        budget=budget,
        sizing=sizing,
        bodies_bytes=bodies,
        decoded_bytes=decoded,
        streams_bytes=streams,
    )


def _host_bytes(lines: Iterable[Line]) -> int:
    return sum(line.n_bytes for line in lines if line.place != "device")


def engine_lines(asked: MemoryAsked, facts: ModelFacts, sizing: Sizing) -> tuple[Line, ...]:
    """What the engine holds, wherever it runs."""
    device, settings = asked.device, asked.engine
    home: Place = "engine" if asked.is_separate else "server"
    big: Place = "device" if device == "cuda" else home
    value_bytes, name = VALUE_BYTES[device], VALUE_NAMES[device]
    millions = facts.n_values / 1e6
    slots = f"{_n(sizing.n_slots, 'session')}, {_n(sizing.n_window_slots, 'window')}, 1 spare"
    rows = [
        Line(
            name="libraries",
            n_bytes=ENGINE_LIBRARIES[device],
            place=home,
            how="torch and what comes with it; " + ("measured" if device == "cpu" else "estimated"),
        ),
        Line(
            name="tokenizer",
            n_bytes=TOKENIZER_FACTOR * facts.tokenizer_bytes,
            place=home,
            how=f"{TOKENIZER_FACTOR} x tokenizer.json",
        ),
        Line(
            name="weights",
            n_bytes=facts.n_values * value_bytes,
            place=big,
            how=f"{millions:.1f} M values as {name}",
        ),
        Line(
            name="KV slots",
            n_bytes=sizing.kv_bytes,
            place=big,
            how=f"{sizing.n_kv_slots} of {sizing.max_model_len} tokens: {slots}",
        ),
        Line(
            name="encoder cache",
            n_bytes=sizing.feature_bytes,
            place=big,
            how=f"{sizing.feature_rows} visual tokens",
        ),
        Line(
            name="patches",
            n_bytes=max(sizing.patch_bytes, _group_bytes(sizing.max_frame_px)),
            place=home,
            how=f"preprocessed frames, each up to {_pixels(sizing)}",
        ),
        Line(
            name="workspace",
            n_bytes=workspace_bytes(settings, facts, sizing, value_bytes=value_bytes),
            place=big,
            how=f"a step of {settings.prefill_chunk} tokens or "
            f"{_encode_px(sizing) // facts.shape.token_px**2} visual tokens; estimated",
        ),
    ]
    if device == "cuda":
        rows.append(
            Line(name="CUDA", n_bytes=DEVICE_CONTEXT, place="device", how="context; estimated")
        )
        how = f"keys of a layer side by side, and {human(GRAPH_POOL)} estimated for the steps"
        n_bytes = graphs_bytes(facts, sizing, value_bytes=value_bytes)
        rows.append(Line(name="decode graphs", n_bytes=n_bytes, place="device", how=how))
    if settings.verify_share > 0:
        n_answers = settings.n_slots + sizing.limits.max_verifications
        n_bytes = KEPT_LOGITS * n_answers * facts.config.text.vocab_size * 4
        how = f"{KEPT_LOGITS} rows of {n_answers} answers, for verify_warm"
        rows.append(Line(name="kept logits", n_bytes=n_bytes, place=home, how=how))
    if asked.is_separate:
        if asked.has_standby:
            how = "a second engine process that has only imported"
            rows.append(Line(name="standby", n_bytes=STANDBY, place=home, how=how))
        how = "pixels on their way to the engine"
        n_bytes = settings.shared_frame_bytes
        rows.append(Line(name="frames", n_bytes=n_bytes, place="shared", how=how))
    return tuple(rows)


def workspace_bytes(
    settings: EngineSettings, facts: ModelFacts, sizing: Sizing, *, value_bytes: int
) -> int:
    """What a step holds for a moment: the tensors of a layer that live together, twice over for
    what an allocator keeps. Loading holds the largest tensor twice, before the pools are made."""
    text, vision = facts.config.text, facts.config.vision
    q_width, kv_width = text.n_heads * text.head_dim, text.n_kv_heads * text.head_dim
    per_token = 4 * text.hidden_size + 3 * q_width + 4 * kv_width + 4 * text.intermediate_size
    n_features = 1 + len(vision.deepstack_layers)
    per_token += n_features * text.hidden_size
    prefill = settings.prefill_chunk * per_token * value_bytes
    prefill += settings.prefill_chunk * (settings.prefill_chunk + sizing.max_model_len)  # the mask
    per_patch = vision.patch_dim + 8 * vision.hidden_size + 2 * vision.intermediate_size
    n_patches = _encode_px(sizing) // vision.patch_size**2
    encode = n_patches * per_patch * value_bytes
    n_logits = 4 * (sizing.n_slots + 1) + 2 * KEPT_LOGITS  # a few copies while sampling
    logits = n_logits * text.vocab_size * 4
    loading = 2 * facts.largest_values * value_bytes - sizing.kv_bytes - sizing.feature_bytes
    return max(2 * (prefill + encode) + logits, loading)


def graphs_bytes(facts: ModelFacts, sizing: Sizing, *, value_bytes: int) -> int:
    """What recorded decode steps hold: the keys and values of one layer for every answer, logits, a
    spare place behind every slot, and the pool."""
    text = facts.config.text
    place = 2 * text.n_kv_heads * text.head_dim * value_bytes
    gathered = sizing.n_slots * sizing.max_model_len * place
    logits = sizing.n_slots * text.vocab_size * value_bytes
    return gathered + logits + text.n_layers * sizing.n_kv_slots * place + GRAPH_POOL


def human(n_bytes: int) -> str:
    """`6.4 GiB`, `531 MiB`: three digits that matter."""
    value, units = float(n_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1000 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.3g} {units[0]}" if units[0] != "B" else f"{n_bytes} B"


def _encode_px(sizing: Sizing) -> int:
    """Pixels of the largest batch of the encoder: a batch takes one group at least."""
    return max(sizing.limits.encode_pixels, sizing.max_frame_px)


def _group_bytes(frame_px: int) -> int:
    return frame_px * 3 * 2 * 4  # colours of two frames as float32


def _n(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _pixels(sizing: Sizing) -> str:
    return f"{sizing.max_frame_px / 1e6:.2g} Mpx"


def _or_share(asked: int | None, share: int, least: int, most: int) -> int:
    return max(least, min(share, most)) // MIB * MIB if asked is None else asked


def _server_lines(
    facts: ModelFacts, pools: ServerPools, bodies: int, decoded: int
) -> Iterable[Line]:
    yield Line(
        name="server libraries",
        n_bytes=SERVER_LIBRARIES,
        place="server",
        how="HTTP, codecs, threads; measured",
    )
    yield Line(
        name="prompts",
        n_bytes=TOKENIZER_FACTOR * facts.tokenizer_bytes,
        place="server",
        how=f"{TOKENIZER_FACTOR} x tokenizer.json",
    )
    yield Line(
        name="request bodies",
        n_bytes=BODY_FACTOR * bodies,
        place="server",
        how=f"{human(bodies)}, each as bytes, text and pictures",
    )
    yield Line(
        name="decoding",
        n_bytes=DECODERS * DECODING,
        place="server",
        how=f"{DECODERS} workers with 24 Mpx each",
    )
    yield Line(
        name="decoded uploads", n_bytes=decoded, place="server", how="pictures and clips as pixels"
    )
    for name, n_bytes, how in (
        ("watches", pools.watches_bytes, "their questions and newest events"),
        ("publisher bodies", pools.publishers_bytes, "offers that are being read"),
    ):
        if n_bytes:
            yield Line(name=name, n_bytes=n_bytes, place="server", how=how)


def _streams_bytes(pools: ServerPools, rest: int) -> int:
    """Asked, or as many streams as the rest has room for: one at least."""
    if pools.streams_bytes is not None:
        return pools.streams_bytes
    most = min(pools.max_streams, STREAMS_MOST // pools.stream_bytes)
    n_streams = min(most, rest // (pools.stream_bytes + CAMERA))
    return max(1, n_streams) * pools.stream_bytes


def _stream_lines(pools: ServerPools, streams_bytes: int) -> Iterable[Line]:
    n_streams = min(pools.max_streams, streams_bytes // pools.stream_bytes)
    for name, n_bytes, what in (
        ("hot rings", pools.hot_bytes, "newest frames as decoded"),
        ("history", pools.history_bytes, "older frames, compressed"),
        ("cameras", CAMERA, "decoders and threads; estimated"),
    ):
        yield Line(
            name=name,
            n_bytes=n_streams * n_bytes,
            place="server",
            how=f"{_n(n_streams, 'stream')} x {human(n_bytes)}: {what}",
        )
