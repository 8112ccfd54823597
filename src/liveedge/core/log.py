"""Lines of the log, for people or as JSON: which request, stream and key they belong to, and not too
many of them.

What a line belongs to is bound around the work that may write it (`bound`) and filled in as it becomes
known (`note`). This is the one "current context" of the program: a line is written by code that knows
nothing of requests, and passing ids to it would pass them everywhere. Nothing else reads it.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, TypeAlias

LogFormat: TypeAlias = Literal["text", "json"]

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_MESSAGE_CHARS = 8000
MAX_EXCEPTION_CHARS = 4000  # the end of it, which says what happened
MAX_STREAMS = 8  # of one line
# Of lines that differ only in what they are about. 100 a second are 1 GB a day: a disk survives that.
BURST_LINES = 1000
LINES_PER_S = 100.0
MAX_KINDS = 1000  # of lines that are told apart


@dataclass(slots=True)
class LogIds:
    """What the lines written now belong to."""

    request_id: str | None = None
    key_id: str | None = None
    stream_ids: list[str] = field(default_factory=list)


_ids: ContextVar[LogIds | None] = ContextVar("liveedge_log_ids", default=None)


@contextmanager
def bound(
    *, request_id: str | None = None, key_id: str | None = None, stream_ids: Iterable[str] = ()
) -> Iterator[LogIds]:
    """Lines that are written inside belong to these."""
    ids = LogIds(request_id, key_id, list(stream_ids))
    token = _ids.set(ids)
    try:
        yield ids
    finally:
        _ids.reset(token)


def note(*, key_id: str | None = None, stream_ids: Iterable[str] = ()) -> None:
    """Tell what has become known about the work at hand; nothing where nothing is bound."""
    ids = _ids.get()
    if ids is None:
        return
    ids.key_id = key_id or ids.key_id
    for stream_id in stream_ids:
        if stream_id not in ids.stream_ids and len(ids.stream_ids) < MAX_STREAMS:
            ids.stream_ids.append(stream_id)


def detached() -> Context:
    """A context for work that may outlive what it was begun for: its lines belong to nothing."""
    context = copy_context()
    context.run(_ids.set, None)
    return context


class TextFormatter(logging.Formatter):
    """A line for people; behind it what it belongs to, unless it says so itself."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  its name in logging
        line = super().formatMessage(record)
        ids = _ids.get()
        if ids is None:
            return line
        known = [("request", ids.request_id), *(("stream", one) for one in ids.stream_ids)]
        missing = [f"{what} {id_}" for what, id_ in known if id_ and id_ not in line]
        return f"{line} [{', '.join(missing)}]" if missing else line


class JsonFormatter(logging.Formatter):
    """One object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        shown: dict[str, object] = {
            "ts": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:MAX_MESSAGE_CHARS],
        }
        if (ids := _ids.get()) is not None:
            shown |= _shown(ids)
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)[-MAX_EXCEPTION_CHARS:]
        facts = getattr(record, "facts", None)  # of lines with numbers in them: `extra`
        if isinstance(facts, dict):
            shown |= facts
        return json.dumps(shown, ensure_ascii=False, default=str)


def _shown(ids: LogIds) -> dict[str, object]:
    shown: dict[str, object] = {}
    if ids.request_id:
        shown["request_id"] = ids.request_id
    if len(ids.stream_ids) == 1:
        shown["stream_id"] = ids.stream_ids[0]
    elif ids.stream_ids:
        shown["stream_ids"] = ids.stream_ids
    if ids.key_id:
        shown["key_id"] = ids.key_id
    return shown


@dataclass(slots=True)
class _Allowance:
    """Of one kind of line."""

    lines: float
    at_s: float
    left_out: int = 0


class Bounded(logging.Filter):
    """Lets so many lines of a kind through, and says how many it did not. Warnings of any kind and
    lines of information are bounded alike: a client can cause either."""

    def __init__(self, *, burst: int = BURST_LINES, lines_per_s: float = LINES_PER_S) -> None:
        super().__init__()
        self._burst = burst
        self._lines_per_s = lines_per_s
        self._kinds: dict[tuple[str, int, str], _Allowance] = {}
        self.left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Without the handler's lock: a race costs a line more or less."""
        kind = (record.name, record.levelno, str(record.msg)[:200])
        now_s = record.created
        allowed = self._kinds.get(kind)
        if allowed is None:
            if len(self._kinds) >= MAX_KINDS:
                self._kinds.clear()
            allowed = self._kinds[kind] = _Allowance(self._burst, now_s)
        passed_s = max(0.0, now_s - allowed.at_s)
        allowed.lines = min(self._burst, allowed.lines + passed_s * self._lines_per_s)
        allowed.at_s = now_s
        if allowed.lines < 1:
            allowed.left_out += 1
            self.left_out += 1
            return False
        allowed.lines -= 1
        if allowed.left_out:
            record.msg = f"{record.getMessage()} (and {allowed.left_out} more such lines)"
            record.args = None
            allowed.left_out = 0
        return True


def present_format() -> LogFormat:
    """How this process writes its log, for a process that it starts."""
    formatters = [handler.formatter for handler in logging.getLogger().handlers]
    return "json" if any(isinstance(one, JsonFormatter) for one in formatters) else "text"


def configure(level: int | str, log_format: LogFormat) -> None:
    """Write the log to standard error. Does nothing where somebody else has taken it over."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(Bounded())
    logging.basicConfig(level=level, handlers=[handler])
