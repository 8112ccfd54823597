"""What a run does, whole: read from TOML, checked, and frozen into its result.

Two runs are compared only where everything but `target` is equal: `work_digest` is of that part.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

SourceKind: TypeAlias = Literal["sim", "push", "whip", "livekit", "rtsp", "files"]
Delivery: TypeAlias = Literal["ovs", "data"]
Clip: TypeAlias = Literal["video", "images"]
VideoFile: TypeAlias = Literal["jpegs", "avi"]
Threads: TypeAlias = Literal["fresh", "related"]
LoadKind: TypeAlias = Literal["closed", "constant", "poisson"]
T = TypeVar("T")


class ScenarioInvalid(Exception):
    """A scenario that cannot be run: which key, what it says, what it may say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server that is measured."""

    base_url: str = "http://127.0.0.1:8000/v1"  # up to the version, as OpenAI clients take it
    model: str = ""  # empty: the first that /models names
    api_key_env: str = "LIVEEDGE_API_KEY"  # the variable that holds the key; never the key itself
    region: str = ""  # sent as X-Overshoot-Region; empty: not sent
    delivery: Delivery = "ovs"  # references to streams, or the same frames as `data:` URLs
    video: VideoFile = "jpegs"  # how a clip is written as `data:`; vLLM reads a list of JPEGs
    metrics_url: str = ""  # Prometheus; empty: /metrics of the same server, where it has one
    pid: int = 0  # of a server on this machine, to sample its processes; 0: unknown
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # merged into every request


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The cameras."""

    kind: SourceKind = "sim"
    count: int = 1
    fps: float = 5.0
    width: int = 640
    height: int = 480
    seed: int = 2_000_000  # of the first workcell; each further one has the next
    files: Sequence[str] = ()  # videos of `liveedge sim record`, with their labels beside them
    rtsp_url: str = ""  # where an RTSP server offers what is published to it; `{n}` is the source
    jpeg_quality: int = 90  # of pictures that the bench sends itself; 0: PNG


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """What one question looks at."""

    frames: int = 1  # 1: the newest picture; more: a clip that ends now
    seconds: float = 0.0  # of a clip; 0: frames / max_fps
    max_fps: float = 2.0  # of a clip
    max_pixels: int = 0  # resize budget of each frame; 0: none
    max_age_ms: int = 0  # freshness bound that the server is asked to hold; 0: none
    clip: Clip = "video"  # how a clip is sent
    # Cache policy. Neither: the live edge, as it is at each request; neighbours share frames, and a
    # server may keep the window warm. Repeats: the same frames all the time, so that caches hit.
    # Distinct: frames by their numbers, so that no window is kept warm, and none twice as far as
    # the cameras give enough of them.
    repeats: bool = False
    distinct: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What is asked. Kinds have true answers (`liveedge.sim.questions`), prompts have none."""

    kinds: Sequence[str] = ("lamp", "door", "display", "count")
    prompts: Sequence[str] = ()
    system: str = ""
    max_tokens: int = 32
    temperature: float = 0.0
    stream: bool = True
    threads: Threads = "fresh"  # related: one thread_id per source, where streams are asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One of several kinds of requests in one run; all else is that of the scenario."""

    name: str
    weight: float = 1.0  # how often, against the other shares
    media: Media = field(default_factory=Media)
    kinds: Sequence[str] = ()
    prompts: Sequence[str] = ()
    threads: Threads = "fresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How often. Open loop: arrivals on a schedule that never waits for answers."""

    kind: LoadKind = "poisson"
    rates_per_s: Sequence[float] = (1.0,)  # open loop: one step each
    concurrency: Sequence[int] = (1,)  # closed loop: one step each
    warmup_s: float = 5.0  # before each step, at its rate, not counted
    duration_s: float = 30.0  # of each step
    pause_s: float = 2.0  # between two steps
    timeout_s: float = 30.0  # of one request, from the moment at which it was due
    max_in_flight: int = 512  # beyond it nothing is sent: recorded, and the step is invalid
    repeats: int = 1  # of the whole sweep
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What an answer must keep to count as good (goodput). 0: not asked."""

    ttft_ms: float = 0.0
    total_ms: float = 0.0
    freshness_ms: float = 0.0  # evidence to the validated end of the answer
    correct: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run."""

    name: str
    about: str = ""
    target: Target = field(default_factory=Target)
    sources: Sources = field(default_factory=Sources)
    media: Media = field(default_factory=Media)
    questions: Questions = field(default_factory=Questions)
    load: Load = field(default_factory=Load)
    slo: Objectives = field(default_factory=Objectives)
    mix: Sequence[Share] = ()  # where given, instead of `media` and what `questions` asks

    @property
    def shares(self) -> Sequence[Share]:
        """What is asked about which media: the mix, or the one thing that the scenario says."""
        asked = self.questions
        return self.mix or (
            Share(
                name="",
                media=self.media,
                kinds=asked.kinds,
                prompts=asked.prompts,
                threads=asked.threads,
            ),
        )

    @property
    def n_steps(self) -> int:
        """Steps of one sweep."""
        load = self.load
        return len(load.concurrency if load.kind == "closed" else load.rates_per_s)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def work_digest(self) -> str:
        """Of all but the target: equal where two runs did the same work."""
        work = {
            key: value for key, value in self.as_json().items() if key not in ("target", "about")
        }
        written = json.dumps(work, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(written.encode()).hexdigest()[:16]


def load_scenario(path: Path, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """A scenario from its file; `overrides` are `{"load.duration_s": 5}`. Raises ScenarioInvalid."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioInvalid(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioInvalid(f"{path} is no TOML: {error}") from error
    for key, value in (overrides or {}).items():
        section, _, name = key.rpartition(".")
        inner = document.setdefault(section, {}) if section else document
        if not isinstance(inner, dict):
            raise ScenarioInvalid(f"{section} is a value and has no key {name}")
        inner[name] = value
    return scenario_of(document, default_name=path.stem)


def scenario_of(document: Mapping[str, Any], *, default_name: str = "scenario") -> Scenario:
    """A scenario from its decoded TOML or JSON."""
    scenario = _made(Scenario, {"name": default_name, **document}, "")
    _check(scenario)
    return scenario


def _made(kind: type[T], document: Any, where: str) -> T:
    """A dataclass from a table; unknown keys and wrong types are refused by their name."""
    if not isinstance(document, Mapping):
        raise ScenarioInvalid(f"{where or 'the scenario'} is {document!r}, it must be a table")
    hints = typing.get_type_hints(kind)
    known = {one.name for one in fields(typing.cast(Any, kind))}
    values = {}
    for key, value in document.items():
        path = f"{where}.{key}" if where else key
        if key not in known:
            raise ScenarioInvalid(f"{path} is no key here; known: {', '.join(sorted(known))}")
        values[key] = _value(hints[key], value, path)
    return kind(**values)


def _value(hint: Any, value: Any, path: str) -> Any:
    if is_dataclass(hint):
        return _made(typing.cast(type[Any], hint), value, path)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value not in arguments:
            raise ScenarioInvalid(f"{path} is {value!r}; one of {', '.join(map(repr, arguments))}")
        return value
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ScenarioInvalid(f"{path} is {value!r}, it must be a table")
        return dict(value)
    if origin is not None and not isinstance(origin, types.UnionType):
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ScenarioInvalid(f"{path} is {value!r}, it must be a list")
        return tuple(_value(arguments[0], one, f"{path}[{n}]") for n, one in enumerate(value))
    return _scalar(hint, value, path)


def _scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ScenarioInvalid(f"{path} is {value!r}, it must be a {hint.__name__}")
    return value


def _check(scenario: Scenario) -> None:
    """What types cannot say."""
    load, sources = scenario.load, scenario.sources
    positive = {
        "sources.count": sources.count,
        "sources.fps": sources.fps,
        "sources.width": sources.width,
        "sources.height": sources.height,
        "questions.max_tokens": scenario.questions.max_tokens,
        "load.duration_s": load.duration_s,
        "load.timeout_s": load.timeout_s,
        "load.max_in_flight": load.max_in_flight,
        "load.repeats": load.repeats,
        **{f"mix[{n}].weight": share.weight for n, share in enumerate(scenario.mix)},
        **{f"{where}.frames": media.frames for where, media in _all_media(scenario)},
        **{f"{where}.max_fps": media.max_fps for where, media in _all_media(scenario)},
        **{f"load.rates_per_s[{n}]": rate for n, rate in enumerate(load.rates_per_s)},
        **{f"load.concurrency[{n}]": count for n, count in enumerate(load.concurrency)},
    }
    for path, value in positive.items():
        if not 0 < value < float("inf"):
            raise ScenarioInvalid(f"{path} is {value}, it must be above 0")
    if not scenario.n_steps:
        raise ScenarioInvalid(f"load has no step: give {_steps_key(load)} at least one value")
    if not scenario.questions.kinds and not scenario.questions.prompts:
        raise ScenarioInvalid("questions has neither kinds nor prompts: nothing would be asked")
    for share in scenario.shares:
        _check_media(share.media, sources)
    if not 0 <= sources.jpeg_quality <= 100:
        raise ScenarioInvalid(
            f"sources.jpeg_quality is {sources.jpeg_quality}, it must be 0 to 100"
        )
    if sources.kind == "files" and not sources.files:
        raise ScenarioInvalid("sources.kind is 'files' and sources.files is empty: name the videos")


def _all_media(scenario: Scenario) -> Sequence[tuple[str, Media]]:
    """Each with the name of its table."""
    mixed = [(f"mix[{n}].media", share.media) for n, share in enumerate(scenario.mix)]
    return [("media", scenario.media), *mixed]


def _check_media(media: Media, sources: Sources) -> None:
    if media.seconds < 0 or media.max_pixels < 0 or media.max_age_ms < 0:
        raise ScenarioInvalid("media.seconds, max_pixels and max_age_ms must not be below 0")
    if media.repeats and media.distinct:
        raise ScenarioInvalid("media.repeats and media.distinct exclude each other")
    if media.distinct and media.frames > 1 and media.max_fps < sources.fps:
        raise ScenarioInvalid(
            f"media.distinct takes every frame of the camera: set media.max_fps, {media.max_fps:g},"
            f" to sources.fps, {sources.fps:g}"
        )


def _steps_key(load: Load) -> str:
    return "concurrency" if load.kind == "closed" else "rates_per_s"
