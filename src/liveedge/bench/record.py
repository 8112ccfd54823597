"""One request as it went: every moment of it, what came back, what is true. A line of records.jsonl.

All moments are seconds of one monotonic clock since the run began (`nan` is never written: None means
that it did not come to that); `sent_at_ms` ties them to the wall clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

Outcome: TypeAlias = Literal[
    "ok",  # 200, whole, and ended as it should
    "refused",  # an HTTP status other than 200
    "failed",  # an error event in mid-answer, a cut stream, or an answer that is no answer
    "unreachable",  # no connection, or lost before any status
    "timeout",  # not complete within load.timeout_s
    "not_sent",  # the generator had load.max_in_flight open: its own limit, never the server's
]
OUTCOMES: tuple[Outcome, ...] = ("ok", "refused", "failed", "unreachable", "timeout", "not_sent")


@dataclass(slots=True, kw_only=True)
class Record:
    """One request. `total` is from `due_s` for open loops, so that waiting to be sent counts."""

    index: int  # in the run, from 0
    repeat: int = 0
    step: int = 0
    warmup: bool = False
    source: int = 0  # which camera
    share: str = ""  # of the mix
    question: str = ""  # the kind, or `prompt-N`
    thread_id: str | None = None

    due_s: float = 0.0  # when it should be sent
    sent_s: float | None = None  # when it was
    connected_s: float | None = None  # where it needed a new connection
    headers_s: float | None = None
    first_event_s: float | None = None  # any event: role-only chunks too; never TTFT
    first_content_s: float | None = None  # the first character of content (or of a tool call)
    content_s: Sequence[float] = ()  # of each event with content
    ended_s: float | None = None  # validated completion, or the failure
    sent_at_ms: float | None = None  # wall clock

    outcome: Outcome = "not_sent"
    status: int = 0
    code: str = ""  # of the error, as the server names it, or the kind of failure
    message: str = ""  # bounded
    retry_after_s: float | None = None
    request_id: str = ""
    n_bytes: int = 0  # of the request
    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    timings_ms: Mapping[str, float] = field(default_factory=dict)  # the server's stages
    frames: Sequence[Mapping[str, Any]] = ()  # the server's evidence, or what was sent as `data:`
    age_ms: float | None = None  # as the server says it

    # Wall-clock ms of the newest frame's capture, from each side. `known` comes from what the bench
    # published or sent, or from the clock burned into the frame.
    evidence_at_ms: float | None = None
    known_evidence_at_ms: float | None = None
    truth: str | None = None  # None: undecidable, or a free prompt
    correct: bool | None = None

    def as_json(self) -> dict[str, Any]:
        """Its own values, not copies: thousands are written while answers are timed."""
        return {name: getattr(self, name) for name in _NAMES}


_NAMES = {one.name: None for one in fields(Record)}  # in their order
MAX_NUMBER = 1 << 60  # above it nothing is a moment or a count
_OF = {  # what JSON gives for an annotation; a float may be written as a whole number
    "int": (int,),
    "bool": (bool,),
    "str": (str,),
    "float": (float, int),
    "Outcome": (str,),
    "Sequence[float]": (list, tuple),
    "Mapping[str, float]": (dict,),
    "Sequence[Mapping[str, Any]]": (list, tuple),
}
_KINDS: Mapping[str, Sequence[type]] = {
    one.name: (
        *_OF[str(one.type).removesuffix(" | None")],
        *((type(None),) if str(one.type).endswith("| None") else ()),
    )
    for one in fields(Record)
}


def record_of(row: Mapping[str, Any]) -> Record:
    """A record from its line; keys of a newer version are left out. Raises ValueError for what a
    record cannot hold."""
    record = Record(**{key: value for key, value in row.items() if key in _NAMES})
    for name, kinds in _KINDS.items():
        value = getattr(record, name)
        if type(value) not in kinds or (type(value) is int and abs(value) > MAX_NUMBER):
            raise ValueError(f"{name} is {str(value)[:40]!r}")
    if record.outcome not in OUTCOMES:
        raise ValueError(f"outcome is {record.outcome[:40]!r}; one of {', '.join(OUTCOMES)}")
    for name, values in (
        ("content_s", record.content_s),
        ("timings_ms", record.timings_ms.values()),
    ):
        if not all(type(value) in (int, float) for value in values):
            raise ValueError(f"{name} holds what is no number")
    return record


def measured(records: Iterable[Record]) -> Iterator[Record]:
    """All but warm-up."""
    return (record for record in records if not record.warmup)
