"""What is true of frames: which moment of which scene they show, and what follows from it.

The moment is read from the cells burned into the pixels, so that neither the truth nor the time of
the evidence rests on what the server says about a frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from liveedge.bench.scenario import ScenarioInvalid, Sources
from liveedge.client.truth import code_of
from liveedge.sim.labels import read_labels
from liveedge.sim.questions import KINDS, expected, score
from liveedge.sim.scene import State, Workcell


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What the cells of one frame say."""

    number: int
    t_ms: int  # of the scene
    wall_ms: int  # when it was taken, by the clock of whoever drew it


class Scene(Protocol):
    """What is true at a moment; None where nobody knows."""

    @property
    def is_known(self) -> bool:
        """Whether anything is known of it at all."""
        ...

    def state(self, moment: Moment) -> State | None: ...


class SimScene:
    """The workcell of one seed."""

    is_known = True

    def __init__(self, seed: int) -> None:
        self._workcell = Workcell(seed)

    def state(self, moment: Moment) -> State | None:
        return self._workcell.state(moment.t_ms / 1000)


class LabelledScene:
    """A video with the labels that `liveedge sim record` writes beside it; without, nothing is known."""

    def __init__(self, video: Path) -> None:
        path = labels_of(video)
        try:
            self._states = (
                {labels.frame_number: labels.state for labels in read_labels(path)}
                if path.exists()
                else {}
            )
        except (OSError, ValueError) as error:
            raise ScenarioInvalid(f"sources.files: {path} cannot be read: {error}") from error

    @property
    def is_known(self) -> bool:
        return bool(self._states)

    def state(self, moment: Moment) -> State | None:
        return self._states.get(moment.number)


def labels_of(video: Path) -> Path:
    """Where the labels of a video lie, if it has any."""
    return video.with_name(video.name + ".jsonl")


def scenes(sources: Sources) -> Sequence[Scene]:
    """Of each camera. Raises ScenarioInvalid."""
    if sources.kind != "files":
        return [SimScene(sources.seed + n) for n in range(sources.count)]
    videos = [Path(sources.files[n % len(sources.files)]) for n in range(sources.count)]
    by_video: Mapping[Path, Scene] = {video: LabelledScene(video) for video in set(videos)}
    return [by_video[video] for video in videos]


def read_moment(picture: bytes) -> Moment | None:
    """None where the picture, or the code in it, cannot be read."""
    try:
        code = code_of(picture)
    except OSError:
        return None
    if code is None:
        return None
    return Moment(number=code.frame_number, t_ms=code.t_ms, wall_ms=code.wall_ms)


def true_answer(scene: Scene, question: str, moments: Sequence[Moment]) -> str | None:
    """None where it is not decidable, for free prompts, and where a frame is not known."""
    if question not in KINDS or not moments:
        return None
    states = [scene.state(moment) for moment in moments]
    known = [state for state in states if state is not None]
    return expected(question, known) if len(known) == len(states) else None


def is_correct(question: str, answer: str, truth: str | None) -> bool | None:
    return None if truth is None else score(question, answer, truth)
