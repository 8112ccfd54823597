"""What a soak does: frozen, written into its log, and compared where a run is resumed.

All times and rates are of the streams: at `speed` 8 an hour of them takes 7.5 minutes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from liveedge.bench.soak.log import NAME, Line, read_log

FEWEST_STREAMS = 4


class OptionsInvalid(Exception):
    """Options that make no soak, or not the one that is to be resumed; the text is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    """Everything that decides what happens. `None` for a period: that part is left out."""

    hours: float
    speed: float = 1.0  # stream time per real time; anything but 1 is accelerated
    seed: int = 0
    model: str | None = None  # checkpoint folder; None: the shipped model
    url: str | None = None  # of a server that runs already
    pid: int | None = None  # of that server, if it is on this machine
    serve_flags: tuple[str, ...] = ()
    retention_s: int = 120  # short, so that rings and histories are full within minutes
    sim_streams: int = 2
    push_streams: int = 2
    whip_streams: int = 1
    fps: float = 2.0
    width: int = 480
    height: int = 270
    question_every_s: float = 1.0
    watch_every_s: float = 5.0  # a standing question; a second one asks when the picture changes
    look_every_s: float = 10.0
    disconnect_every_s: float = 10.0
    hostile_every_s: float = 15.0
    slow_every_s: float = 45.0
    slow_for_s: float = 90.0
    leave_every_s: float = 240.0
    loss_every_s: float = 180.0
    loss_for_s: float = 20.0
    flap_every_s: float = 300.0
    flaps: int = 5
    kill_every_s: float = 600.0
    rest_real_s: float = 10.0  # at the end: for what was in progress when everybody left

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not value > 0:
                raise OptionsInvalid(f"{field.name} is {value:g}, needs to be more than 0")
        if self.n_streams < FEWEST_STREAMS:
            raise OptionsInvalid(
                f"{self.n_streams} streams are no soak: it takes {FEWEST_STREAMS} at least, of"
                " sim_streams, push_streams and whip_streams together"
            )
        if self.sim_streams < 1:
            raise OptionsInvalid(
                "sim_streams is 0: one simulated camera is what kills are timed by"
            )
        if self.url is not None and (self.speed != 1.0 or self.serve_flags or self.model):
            raise OptionsInvalid(
                "speed, model and serve_flags are of a server that is started here; leave them out"
                " beside url"
            )

    @property
    def n_streams(self) -> int:
        return self.sim_streams + self.push_streams + self.whip_streams

    @property
    def seconds(self) -> float:
        """Of stream time."""
        return self.hours * 3600

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def from_json(found: Mapping[str, Any]) -> SoakOptions:
    """Raises OptionsInvalid where another version wrote it."""
    names = {field.name for field in dataclasses.fields(SoakOptions)}
    if unknown := sorted(set(found) - names):
        raise OptionsInvalid(
            f"the log holds options that are not known: {', '.join(unknown)}; use the version of liveedge"
            " that wrote it"
        )
    return SoakOptions(**{**found, "serve_flags": tuple(found.get("serve_flags", ()))})


def logged_options(folder: Path) -> SoakOptions:
    """Of the soak that is in this folder. Raises LogBroken and OptionsInvalid."""
    return options_of(read_log(folder / NAME), folder)


def options_of(lines: Sequence[Line], folder: Path) -> SoakOptions:
    """Of the soak whose log these are. Raises OptionsInvalid."""
    if not lines or lines[0]["what"] != "soak":
        raise OptionsInvalid(
            f"{folder / NAME} does not begin as the log of a soak does: name the folder of one"
        )
    return from_json(lines[0]["options"])


def differences(logged: SoakOptions, asked: Mapping[str, Any]) -> list[str]:
    """What was asked for otherwise than the log says, one line each."""
    return [
        f"{name} was {getattr(logged, name)!r}, and now is {value!r}"
        for name, value in sorted(asked.items())
        if getattr(logged, name) != value
    ]
