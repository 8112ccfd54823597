"""The log of a soak: one JSON object a line, appended as things happen, never changed.

Everything that is told later is computed from it. A line that a dead process left half-written is
passed over; whatever comes after it begins on a new line.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from liveedge.bench.result import writing

NAME = "soak.jsonl"

Line: TypeAlias = dict[str, Any]


class LogBroken(Exception):
    """A log that cannot be read; the text names file and line."""


class Log:
    """Appends lines to a file. Any thread; a line is on its way to the disk when `write` returns."""

    def __init__(self, path: Path, *, now_s: Callable[[], float]) -> None:
        self._path, self._now_s = path, now_s
        self._lock = threading.Lock()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        n_bytes = os.fstat(self._fd).st_size
        if n_bytes and os.pread(self._fd, 1, n_bytes - 1) != b"\n":
            os.write(self._fd, b"\n")

    def write(self, what: str, **fields: Any) -> None:
        """One line; `at_s` is the stream time since the soak began, where it is not given.

        Raises ResultUnwritable where the whole line cannot be written; then nothing of it is.
        """
        line = {"what": what, "at_s": round(self._now_s(), 3), **fields}
        data = json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n"
        with self._lock, writing(self._path):
            _append(self._fd, data.encode())

    def close(self) -> None:
        os.close(self._fd)


def _append(fd: int, data: bytes) -> None:
    """All of it, or nothing. A disk that is nearly full takes a part."""
    begins = os.fstat(fd).st_size
    written = os.write(fd, data)
    if written < len(data):
        os.ftruncate(fd, begins)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_log(path: Path) -> Sequence[Line]:
    """All lines. Raises LogBroken where one is broken that a killed writer cannot have left so."""
    try:
        texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise LogBroken(f"{path} cannot be read: {error.strerror or error}") from error
    lines: list[Line] = []
    broken: int | None = None
    for number, text in enumerate(texts, start=1):
        line = _parsed(text)
        if broken is not None and text and (line is None or line["what"] != "segment"):
            raise LogBroken(
                f"{path}: line {broken} is no line of a soak, and others follow it: take it out to go on"
            )
        if line is not None:
            lines.append(line)
        broken = number if text and line is None else None
    return lines


def _parsed(text: str) -> Line | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and "what" in line else None
