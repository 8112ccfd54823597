"""Training batches from the simulator: pictures and clips, dense labels, packed questions.

One batch holds samples of one shape (frame size and number of temporal groups). After the media of
a sample come several questions, each of which sees the media and itself alone: the picture is
paid for once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from liveedge.models.qwen3_vl.processor import resize
from liveedge.sim import questions
from liveedge.sim.render import NATIVE_HEIGHT, NATIVE_WIDTH, Difficulty, Region, Renderer
from liveedge.sim.scene import COLOURS, State, Workcell

PATCH, MERGE, FACTOR = 16, 2, 32
IGNORE = -100
DIGITS = tuple("0123456789")

# What a linear head on every visual token predicts: 0 is "nothing of this here".
HEADS: dict[str, tuple[str, ...]] = {
    "door": ("open", "closed", "moving"),
    "lamp": ("on", "off"),
    "shirt": COLOURS,
    "box": COLOURS,
    "tens": DIGITS,
    "ones": DIGITS,
    "gauge": tuple("012345"),
    "belt": ("left", "right", "stopped"),
}
BEFORE = ("door", "shirt", "box", "tens", "ones")  # also of the first frame of a pair
MOVES = ("up", "down", "steady")  # of the display within a pair
HEAD_SIZES = (
    {name: len(values) + 1 for name, values in HEADS.items()}
    | {f"{name}_before": len(HEADS[name]) + 1 for name in BEFORE}
    | {"move": len(MOVES) + 1}
)

# (camera width, height, model height, model width): the last two are what the processor makes
SIZES: dict[str, tuple[int, int, int, int]] = {
    "native": (NATIVE_WIDTH, NATIVE_HEIGHT, 192, 320),
    "360": (640, 360, 192, 320),
    "240": (426, 240, 192, 320),
    "160": (284, 160, 160, 288),
}
Mode = Literal["branches", "chain", "text_first", "compare"]
Pattern = tuple[tuple[int, int], ...]  # which frames form each temporal group


@dataclass(frozen=True, slots=True)
class Shape:
    """What all samples of a batch have in common."""

    pattern: Pattern
    size: str = "native"
    mode: Mode = "branches"
    video: bool = True
    events_first: bool = False  # ask about what happened before asking about what is

    @property
    def n_frames(self) -> int:
        return self.pattern[-1][1] + 1


@dataclass(frozen=True, slots=True)
class Clip:
    """Rendered frames with their truth."""

    frames: list[NDArray[np.uint8]]
    states: list[State]
    times_s: list[float]  # from the first frame
    regions: list[list[Region]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of B samples; L is the longest sequence, M visual tokens per group."""

    patches: Tensor  # [B * G, N, patch_dim] float32
    grid_hw: tuple[int, int]
    dense: dict[str, Tensor]  # per head [B * G, M] int64
    ids: Tensor  # [B, L]
    positions: Tensor  # [3, B, L]
    mask: Tensor  # [B, 1, L, L] bool
    targets: Tensor  # [B, L] next token or IGNORE
    kinds: Tensor  # [B, L] number of the question kind at targets
    visual_at: Tensor  # [B * G * M] places in the flattened [B * L]


def sample_times(rng: np.random.Generator, n_frames: int) -> list[float]:
    """Offsets of frames from the first: a steady rate; at the live edge the newest frame stands in
    for the last one of the grid, up to a step later."""
    if n_frames == 1:
        return [0.0]
    step = float(rng.choice([0.2, 0.25, 1 / 3, 0.5, 0.5, 0.5, 0.5, 1.0]))
    times = np.arange(n_frames) * step + rng.uniform(0, 0.034, n_frames)
    if n_frames > 2 and rng.random() < 0.7:
        times[-1] += rng.uniform(0, 0.97) * step
    return [float(t - times[0]) for t in times]


def draw_clip(rng: np.random.Generator, shape: Shape, *, seeds: range, n_tries: int) -> Clip:
    """A random moment of a random workcell; among `n_tries`, one where much happens."""
    seed = int(rng.integers(seeds.start, seeds.stop))
    cell = Workcell(seed)
    times = sample_times(rng, shape.n_frames)
    best, best_states, best_value = 0.0, [], -1.0
    for _ in range(n_tries if shape.n_frames > 1 else 1):
        start = float(rng.uniform(0.5, 60))
        states = [cell.state(start + t) for t in times]
        value = _happening(states) + float(rng.random())
        if value > best_value:
            best, best_states, best_value = start, states, value
    width, height, _, _ = SIZES[shape.size]
    difficulty: Difficulty = "normal" if rng.random() < 0.9 else "hard"
    renderer = Renderer(cell, width=width, height=height, difficulty=difficulty)
    numbers = [round((best + t) * 30) for t in times]
    wall_ms = int(rng.integers(1_790_000_000_000, 1_900_000_000_000))
    frames = [
        renderer.render(n, best + t, wall_ms + round(t * 1000))
        for n, t in zip(numbers, times, strict=True)
    ]
    return Clip(frames, best_states, times, [renderer.regions(s) for s in best_states])


def _happening(states: Sequence[State]) -> float:
    """How many kinds of events this clip shows, each weighted by how rare it is."""
    value = 0.0
    for kind, weight in (("box_event", 1.0), ("door_event", 1.3), ("person_event", 1.5)):
        answer = questions.expected(kind, states)
        value += weight if answer not in (None, "no change") else 0.0
        value -= 0.3 if answer is None else 0.0
    return value


def dense_labels(
    regions: Sequence[Region], *, rows: int, columns: int, heads: Sequence[str]
) -> dict[str, NDArray[np.int64]]:
    """Class of each token's square per head: what covers a third of it, or has a third of itself in it."""
    cell_w, cell_h = NATIVE_WIDTH / columns, NATIVE_HEIGHT / rows
    labels = {head: np.zeros((rows, columns), np.int64) for head in heads}
    xs, ys = np.arange(columns) * cell_w, np.arange(rows) * cell_h
    for region in regions:
        if region.head not in labels:
            continue
        x0, y0, x1, y1 = region.rect
        across = np.clip(np.minimum(xs + cell_w, x1) - np.maximum(xs, x0), 0, None)
        down = np.clip(np.minimum(ys + cell_h, y1) - np.maximum(ys, y0), 0, None)
        overlap = down[:, None] * across[None]
        covered = overlap >= min(cell_w * cell_h / 3, (x1 - x0) * (y1 - y0) * 0.3)
        labels[region.head][covered] = HEADS[region.head].index(region.value) + 1
    return labels


def group_labels(clip: Clip, pair: tuple[int, int], rows: int, columns: int) -> dict[str, Tensor]:
    """Dense labels of one temporal group: of its second frame, and for some of its first."""
    first, second = pair
    now = dense_labels(clip.regions[second], rows=rows, columns=columns, heads=tuple(HEADS))
    before = dense_labels(clip.regions[first], rows=rows, columns=columns, heads=BEFORE)
    gap_s = clip.times_s[second] - clip.times_s[first]
    one_belt = clip.states[first].belt == clip.states[second].belt
    if gap_s < 0.1 or not one_belt:
        now["belt"][:] = IGNORE
    now |= {f"{head}_before": value for head, value in before.items()}
    now["move"] = _move_labels(clip, pair, now["tens"] + now["ones"] > 0)
    return {head: torch.from_numpy(value.reshape(-1)) for head, value in now.items()}


def _move_labels(
    clip: Clip, pair: tuple[int, int], on_display: NDArray[np.bool_]
) -> NDArray[np.int64]:
    first, second = (clip.states[i].display for i in pair)
    move = "steady" if first == second else "up" if second > first else "down"
    return np.where(on_display, MOVES.index(move) + 1, 0).astype(np.int64)


def patchify(frames: Tensor) -> Tensor:
    """[K, 2, 3, H, W] uint8 -> [K, N, patch_dim] float32, as the processor orders them."""
    k, depth, channels, height, width = frames.shape
    x = frames.float().div_(127.5).sub_(1.0)
    rows, columns = height // FACTOR, width // FACTOR
    x = x.view(k, depth, channels, rows, MERGE, PATCH, columns, MERGE, PATCH)
    x = x.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return x.reshape(k, rows * columns * MERGE * MERGE, -1)


def _boxes(states: Sequence[State]) -> str | None:
    if any(box.lift > 0 for box in states[-1].boxes):
        return None
    return " ".join(box.colour for box in states[-1].boxes) or "none"


def _at_start(
    truth: Callable[[Sequence[State]], str | None],
) -> Callable[[Sequence[State]], str | None]:
    return lambda states: truth(states[:1])


# Questions that only teach: what was in the first frame, and every box by itself.
LESSONS: dict[str, tuple[tuple[str, ...], Callable[[Sequence[State]], str | None]]] = {
    "boxes": (
        ("List the colours of the boxes.", "Which boxes are there, from left to right?"),
        _boxes,
    ),
    "boxes_at_start": (
        ("List the colours of the boxes at the start.", "Which boxes were there at first?"),
        _at_start(_boxes),
    ),
    "count_at_start": (
        ("How many boxes were there at the start?", "How many boxes were there at first?"),
        _at_start(questions.KINDS["count"].truth),
    ),
    "display_at_start": (
        ("What number was on the display at the start?", "What did the display show at first?"),
        _at_start(questions.KINDS["display"].truth),
    ),
}
CLIP_LESSONS = ("boxes_at_start", "count_at_start", "display_at_start")
COMPARE = "compare"  # which way do two given readings go?
N_COMPARISONS = 60  # of them behind one clip
ALL_KINDS = (*questions.KINDS, *LESSONS, COMPARE)


class Packer:
    """Token sequences for samples: media, then questions that do not see each other."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab()
        self.image_id = vocabulary["<|image_pad|>"]
        self.video_id = vocabulary["<|video_pad|>"]
        self.kind_number = {name: i for i, name in enumerate(ALL_KINDS)}

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def media_ids(self, clip: Clip, shape: Shape, n_tokens: int) -> list[int]:
        """The expanded media part of the prompt."""
        if not shape.video:
            return self.encode("<|vision_start|>" + "<|image_pad|>" * n_tokens + "<|vision_end|>")
        text = "<|vision_start|>"
        for first, second in shape.pattern:
            time_s = (clip.times_s[first] + clip.times_s[second]) / 2
            pads = "<|video_pad|>" * n_tokens
            text += f"<{time_s:.1f} seconds><|vision_start|>{pads}<|vision_end|>"
        return self.encode(text + "<|vision_end|>")

    def choose(
        self, rng: np.random.Generator, clip: Clip, n: int, *, events_first: bool
    ) -> list[tuple[str, str]]:
        """(kind, answer) pairs that this clip can answer."""
        possible = list(questions.KINDS) if len(clip.states) > 1 else list(questions.FRAME_KINDS)
        known = {kind: questions.spoken(kind, clip.states) for kind in possible}
        found = [(kind, answer) for kind, answer in known.items() if answer is not None]
        order = rng.permutation(len(found))
        picked = [found[int(i)] for i in order]
        # "no change" answers would drown the events: keep a part of them
        kept = [(k, a) for k, a in picked if a != "no change" or rng.random() < 0.45]
        if events_first:
            lessons = {name: truth(clip.states) for name, (_, truth) in LESSONS.items()}
            known_lessons = [(k, a) for k, a in lessons.items() if a is not None]
            kept += known_lessons if len(clip.states) > 1 else known_lessons[:1]
            kept.sort(key=lambda pair: not _is_about_time(pair[0]))
            kept = kept[:n]
            kept = [kept[int(i)] for i in rng.permutation(len(kept))]
        return kept[:n]

    def pack(
        self, rng: np.random.Generator, clip: Clip, shape: Shape, grid: tuple[int, int]
    ) -> Packed:
        rows, columns = grid
        media = self.media_ids(clip, shape, rows * columns)
        system = ""
        if rng.random() < 0.2:
            system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        head = self.encode(system + "<|im_start|>user\n")
        if shape.mode == "compare":
            packed = Packed()
            packed.add(head, segment=0)
            packed.add(media, segment=0, visual=(self.image_id, self.video_id, grid))
            return self._compare(rng, packed)
        n_questions = {"branches": 12, "chain": 3, "text_first": 1}[shape.mode]
        if len(shape.pattern) == 1 and shape.mode == "branches":
            n_questions = 8
        events_first = shape.events_first and n_questions > 1
        chosen = self.choose(rng, clip, n_questions, events_first=events_first)
        packed = Packed()
        if shape.mode == "text_first":
            kind, answer = chosen[0]
            packed.add(head + self.encode(self._question(rng, kind)), segment=0)
            packed.add(media, segment=0, visual=(self.image_id, self.video_id, grid))
            packed.add(self.encode("<|im_end|>\n<|im_start|>assistant\n"), segment=0)
            self._answer(packed, kind, answer, segment=0)
            return packed
        packed.add(head, segment=0)
        packed.add(media, segment=0, visual=(self.image_id, self.video_id, grid))
        branch_from = packed.next_position
        for number, (kind, answer) in enumerate(chosen, start=1):
            segment = number if shape.mode == "branches" else 0
            if shape.mode == "branches":
                packed.next_position = branch_from
            opening = "" if shape.mode == "branches" or number == 1 else "\n<|im_start|>user\n"
            turn = opening + self._question(rng, kind) + "<|im_end|>\n<|im_start|>assistant\n"
            packed.add(self.encode(turn), segment=segment)
            self._answer(packed, kind, answer, segment=segment)
        return packed

    def _compare(self, rng: np.random.Generator, packed: Packed) -> Packed:
        """One question about the display, and many given readings that each see it alone."""
        turn = questions.ask("display_event", rng) + "<|im_end|>\n<|im_start|>assistant\n"
        packed.add(self.encode(turn), segment=0)
        branch_from = packed.next_position
        for number in range(1, N_COMPARISONS + 1):
            packed.next_position = branch_from
            readings, word = two_readings(rng)
            packed.add(self.encode(readings), segment=number)
            ids = self.encode(f" {word}<|im_end|>")
            packed.add(ids, segment=number, kind=self.kind_number[COMPARE])
        return packed

    def _question(self, rng: np.random.Generator, kind: str) -> str:
        if kind in LESSONS:
            phrasings = LESSONS[kind][0]
            return phrasings[int(rng.integers(len(phrasings)))]
        text = questions.ask(kind, rng)
        roll = rng.random()
        if roll < 0.08:
            text = text.lower()
        elif roll < 0.16:
            text += " Answer with one word." if kind != "state" else " Be short."
        elif roll < 0.20:
            text = "\n" + text
        return text

    def _answer(self, packed: Packed, kind: str, answer: str, *, segment: int) -> None:
        ids = self.encode(answer + "<|im_end|>")
        packed.add(ids, segment=segment, kind=self.kind_number[kind])


def _is_about_time(kind: str) -> bool:
    return kind in CLIP_LESSONS or kind in questions.CLIP_KINDS


def two_readings(rng: np.random.Generator) -> tuple[str, str]:
    """`12 to 15:` and which way that goes."""
    first = int(rng.integers(100))
    second = int(np.clip(first + rng.integers(-6, 7), 0, 99))
    word = "steady" if first == second else "up" if second > first else "down"
    return f"{first:02d} to {second:02d}:", word


class Packed:
    """One growing sequence."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[tuple[int, int, int]] = []
        self.segments: list[int] = []
        self.target_kind: list[int] = []  # kind of the answer this token belongs to, or -1
        self.next_position = 0

    def add(
        self,
        ids: list[int],
        *,
        segment: int,
        kind: int = -1,
        visual: tuple[int, int, tuple[int, int]] | None = None,
    ) -> None:
        i = 0
        while i < len(ids):
            if visual is not None and ids[i] in visual[:2]:
                rows, columns = visual[2]
                p = self.next_position
                self.positions += [(p, p + r, p + c) for r in range(rows) for c in range(columns)]
                n = rows * columns
                self.next_position += max(rows, columns)
            else:
                self.positions.append((self.next_position,) * 3)
                self.next_position += 1
                n = 1
            self.ids += ids[i : i + n]
            self.segments += [segment] * n
            self.target_kind += [kind] * n
            i += n


def make_batch(
    rng: np.random.Generator,
    packer: Packer,
    shape: Shape,
    n: int,
    *,
    seeds: range,
    n_tries: int = 8,
) -> Batch:
    """`n` samples of one shape."""
    clips = [draw_clip(rng, shape, seeds=seeds, n_tries=n_tries) for _ in range(n)]
    _, _, height, width = SIZES[shape.size]
    grid = (height // FACTOR, width // FACTOR)
    frames, labels = [], []
    for clip in clips:
        small = [resize(frame, size=(height, width)) for frame in clip.frames]
        for first, second in shape.pattern:
            frames.append(torch.stack((small[first], small[second])))
            labels.append(group_labels(clip, (first, second), *grid))
    dense = {head: torch.stack([label[head] for label in labels]) for head in HEAD_SIZES}
    packs = [packer.pack(rng, clip, shape, grid) for clip in clips]
    return Batch(
        patches=patchify(torch.stack(frames)),
        grid_hw=(height // PATCH, width // PATCH),
        dense=dense,
        **_collate(packs, packer),
    )


def _collate(packs: Sequence[Packed], packer: Packer) -> dict[str, Tensor]:
    longest = max(len(pack.ids) for pack in packs)
    ids = torch.zeros(len(packs), longest, dtype=torch.long)
    positions = torch.zeros(3, len(packs), longest, dtype=torch.long)
    segments = torch.full((len(packs), longest), -1)
    targets = torch.full((len(packs), longest), IGNORE)
    kinds = torch.full((len(packs), longest), -1)
    for b, pack in enumerate(packs):
        n = len(pack.ids)
        ids[b, :n] = torch.tensor(pack.ids)
        positions[:, b, :n] = torch.tensor(pack.positions).T
        segments[b, :n] = torch.tensor(pack.segments)
        kind = torch.tensor(pack.target_kind)
        is_answer = kind[1:] >= 0
        targets[b, : n - 1][is_answer] = ids[b, 1:n][is_answer]
        kinds[b, : n - 1][is_answer] = kind[1:][is_answer]
    same = segments[:, :, None] == segments[:, None, :]
    prefix = (segments == 0)[:, None, :]
    causal = torch.ones(longest, longest, dtype=torch.bool).tril()
    mask = (same | prefix) & causal
    mask |= torch.eye(longest, dtype=torch.bool)  # a padded row still sees itself
    visual = torch.isin(ids, torch.tensor([packer.image_id, packer.video_id]))
    return {
        "ids": ids,
        "positions": positions,
        "mask": mask[:, None],
        "targets": targets,
        "kinds": kinds,
        "visual_at": visual.reshape(-1).nonzero()[:, 0],
    }


def one_by_one(n: int) -> Pattern:
    """Frames as pairs from an even tick: (0,1) (2,3) ..., the last doubled when alone."""
    return tuple((i, min(i + 1, n - 1)) for i in range(0, n, 2))


def from_odd(n: int) -> Pattern:
    """Frames as pairs from an odd tick: the first doubled, then (1,2) (3,4) ..."""
    return ((0, 0), *((i, min(i + 1, n - 1)) for i in range(1, n, 2)))
