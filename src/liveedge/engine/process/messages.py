"""What the two halves of the engine say to each other: plain values, torch-free.

`client` is the half where HTTP runs, `core` the half with the model. `wire` writes these for
another process; in one process they are passed as they are. Times are seconds of
CLOCK_MONOTONIC, which all processes of a Linux machine share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from liveedge.core.errors import LiveEdgeError
from liveedge.engine.decide.plan import LoadJob
from liveedge.engine.interface import (
    EngineSettings,
    EngineStats,
    PreparedRequest,
    Warmed,
    WindowPrefix,
)
from liveedge.engine.request import Event

# to the engine's loop


@dataclass(frozen=True, slots=True)
class Submit:
    """A client asks."""

    prepared: PreparedRequest
    now_s: float


@dataclass(frozen=True, slots=True)
class Abort:
    """A client left."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A worker is done with a group."""

    job: LoadJob
    outcome: object | LiveEdgeError


@dataclass(frozen=True, slots=True)
class Warm:
    """A window shall hold this prefix."""

    prefix: WindowPrefix
    now_s: float


@dataclass(frozen=True, slots=True)
class DropWindow:
    """A window is not needed any more."""

    window_id: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Is the loop still turning? Answered with the same number."""

    number: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The engine ends after this turn."""


EngineInput: TypeAlias = Submit | Abort | Loaded | Warm | DropWindow | Ping | Stop

# between the two halves


@dataclass(frozen=True, slots=True)
class Range:
    """A part of the shared frame memory."""

    start: int  # bytes
    n_bytes: int


@dataclass(frozen=True, slots=True)
class SharedPixels:
    """Pixels of a group's frames, one after the other in a range."""

    place: Range
    sizes: tuple[tuple[int, int], ...]  # (height, width) of each frame


Pixels: TypeAlias = SharedPixels | tuple[NDArray[np.uint8], ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """The engine needs the pixels of a group; answered with one `Fetched` unless withdrawn."""

    ticket: int  # unique while an engine runs
    key: str
    only_exact: bool = False  # a compressed copy is of no use


@dataclass(frozen=True, slots=True)
class DropFetch:
    """Nobody waits for these any more."""

    tickets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fetched:
    """The pixels of a group, or why they cannot be had."""

    ticket: int
    outcome: Pixels | LiveEdgeError


@dataclass(frozen=True, slots=True)
class Freed:
    """The engine is done with the pixels that it got for a ticket. Said once for each."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Compile:
    """A grammar that a request will bring soon."""

    grammar: str


@dataclass(frozen=True, slots=True)
class Opened:
    """The engine answers from now on."""

    startup_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class OpenFailed:
    """The engine cannot run, and trying again would not help."""

    error: LiveEdgeError


@dataclass(frozen=True, slots=True)
class LeftQueue:
    """These hold a slot now or ended; ids may repeat."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Released:
    """The frames of these requests are needed no more."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Turned:
    """What came of a turn. The gauges are set where they may have changed."""

    events: tuple[tuple[str, Event | Warmed], ...]
    stats: EngineStats | None


@dataclass(frozen=True, slots=True)
class Pong:
    """The loop is turning."""

    number: int


ToEngine: TypeAlias = Submit | Abort | Warm | DropWindow | Ping | Stop | Compile | Fetched
FromEngine: TypeAlias = (
    Opened | OpenFailed | Turned | LeftQueue | Released | Pong | Fetch | DropFetch | Freed
)


def most_warms(settings: EngineSettings) -> int:
    """Calls of `warm` that may be alive at once: each window's newest, and some that it replaced."""
    return 4 * settings.n_windows


def most_messages(settings: EngineSettings) -> int:
    """How many messages can lie before the loop at once, loads aside.

    A waiting request may have a Submit and an Abort there, a running one an Abort; a prefix a Warm
    and an Abort, its window a DropWindow; then a Ping and a Stop.
    """
    requests = 2 * settings.queue_capacity + settings.n_slots
    return requests + 3 * most_warms(settings) + 2
