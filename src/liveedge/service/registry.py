"""The streams on disk: what a restarted server needs to go on with them.

Owns    a SQLite database (WAL, for this user alone: it holds the URLs of sources, with their
        passwords) and the thread that writes to it.
Thread  `liveedge-registry` writes; everything else is called in the event loop and never blocks,
        except for opening and `close`.
Never   logs a URL, or ends a stream because the disk refuses.

Invariants
1. What `saved` has returned for survives the death of the process. A loss of power may take what the
   system had not yet written, half a minute; the file stays whole.
2. Of each stream the newest row waits to be written, and no other: the queue is as long as there are
   streams and tombstones.
3. A row that could not be written is written again until it could.
4. The URL of a stream that has ended is in no file any more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from liveedge.core.clock import Clock
from liveedge.core.errors import SettingsInvalid, StreamLimitReached
from liveedge.core.tasks import OwnedThread
from liveedge.frames.store import StoreMark
from liveedge.service.sources import SourceSpec
from liveedge.service.state_dir import OURS_ALONE, StateDir, is_stream_id, require_file, way_out
from liveedge.service.view import StreamView

log = logging.getLogger("liveedge.service")

SCHEMA_VERSION = 2
RETRY_S = 1.0  # between tries to write to a disk that refuses
LAST_TRY_S = 2.0  # at the end of the process
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
_TABLE = """
CREATE TABLE IF NOT EXISTS streams (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    source TEXT,            -- JSON of SourceSpec, with the URL; NULL once the stream has ended
    finished TEXT,          -- why nothing will ever come from the source again
    ended_at_ms INTEGER,
    end_reason TEXT,
    last_view TEXT,         -- JSON of StreamView: the counters of the end
    mark TEXT               -- JSON of StoreMark: how far its frames had got
) STRICT, WITHOUT ROWID
"""
_COLUMNS = (
    "id", "tenant", "created_at_ms", "expires_at_ms", "source", "finished", "ended_at_ms",
    "end_reason", "last_view", "mark",
)  # fmt: skip
_GET = f"SELECT {', '.join(_COLUMNS)} FROM streams ORDER BY created_at_ms, id"
_PUT = f"INSERT OR REPLACE INTO streams VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"
_FORGET = "DELETE FROM streams WHERE id = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRow:
    """A stream that shall go on."""

    id: str
    tenant: str
    spec: SourceSpec
    created_at_ms: int
    expires_at_ms: int
    finished: str | None = None
    mark: StoreMark | None = None  # None before its first frame


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRow:
    """A tombstone."""

    tenant: str
    expires_at_ms: int  # of the lease
    view: StreamView

    @property
    def id(self) -> str:
        return self.view.id


Row: TypeAlias = ActiveRow | EndedRow
Columns: TypeAlias = Mapping[str, str | int | None]
Changes: TypeAlias = dict[str, Columns | None]  # by stream; None: to be deleted


class Registry:
    """The rows of all streams. `start` before the first `saved`, `close` at the end.

    Raises SettingsInvalid where the file cannot be opened, or is of a newer version. One that is
    damaged is set aside, and an empty one takes its place. One that can be read but not written, on
    a full disk, is read, and written once that is possible.
    """

    def __init__(self, folder: StateDir, *, clock: Clock) -> None:
        self.folder = folder
        self.n_failed = 0  # tries to write
        self._path = folder.database
        self._clock = clock
        self._changed = threading.Condition()
        self._n_told = 0  # changes
        self._n_saved = 0  # of these, the ones on the disk
        self._failure: str | None = None  # of the newest try to write
        self._wakes: list[Callable[[], None]] = []
        self._retry_now = threading.Event()
        self._thread = OwnedThread("liveedge-registry", self._write_for_ever)
        opened = self._opened()
        self._database: sqlite3.Connection | None = opened.database
        self._kept = {row.id: row for row in opened.rows}  # what the file holds, or shall hold
        self._waiting: Changes = dict.fromkeys(opened.unreadable)

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, those that are still on their way to the disk included."""
        with self._changed:
            return tuple(self._kept.values())

    @property
    def failure(self) -> str | None:
        """Why the newest changes are not on the disk; None while they are, or are on their way."""
        return self._failure

    @property
    def n_waiting(self) -> int:
        """Rows that are not on the disk yet."""
        return len(self._waiting)

    def start(self) -> None:
        self._thread.start()

    # ── the event loop's side ──

    def put(self, row: Row) -> None:
        """Keep this row, in place of the stream's earlier one."""
        with self._changed:
            self._kept[row.id] = row
            self._tell(row.id, _columns(row))

    def forget(self, stream_id: str) -> None:
        """Keep nothing of this stream."""
        with self._changed:
            if self._kept.pop(stream_id, None) is not None:
                self._tell(stream_id, None)

    async def saved(self) -> None:
        """Return once everything told so far is on the disk.

        Raises StreamLimitReached where the disk refuses; writing is tried again and again then.
        """
        loop = asyncio.get_running_loop()
        target = self._n_told
        while True:
            tried = asyncio.Event()

            def wake(event: asyncio.Event = tried) -> None:
                _call_soon(loop, event.set)

            with self._changed:
                if self._n_saved >= target:
                    return
                self._require_writable()
                self._wakes.append(wake)
            await tried.wait()

    def close(self) -> None:
        """Write what waits and give the file back. Blocks, for little more than LAST_TRY_S."""
        with self._changed:
            self._thread.stopping.set()
            self._retry_now.set()
            self._changed.notify_all()
        if not self._thread.stop(LAST_TRY_S):
            log.warning("%s: the disk does not answer", self._path)
            return
        if self._waiting:
            log.warning("%s: %d streams could not be written", self._path, len(self._waiting))
        self._disconnect()

    # ── under the lock ──

    def _tell(self, stream_id: str, change: Columns | None) -> None:
        self._waiting[stream_id] = change
        self._n_told += 1
        self._changed.notify_all()

    def _require_writable(self) -> None:
        if self._failure is not None:
            raise StreamLimitReached(
                f"the stream could not be kept: {self._path} (of state_dir) cannot be written:"
                f" {self._failure}"
            )

    # ── the thread ──

    def _write_for_ever(self, stopping: threading.Event) -> None:
        while True:
            with self._changed:
                while not self._waiting and not stopping.is_set():
                    self._changed.wait()
                changes, n_told = dict(self._waiting), self._n_told
            failure = self._try(changes) if changes else None
            self._note(changes, n_told, failure)
            if stopping.is_set() and (failure is not None or not self._waiting):
                return
            if failure is not None:
                self._clock.wait(self._retry_now, RETRY_S)

    def _try(self, changes: Changes) -> str | None:
        """Write; why not, where that fails."""
        try:
            if self._database is None:
                self._database = _connected(self._path)
            _write(self._database, changes)
        except (OSError, sqlite3.Error) as error:
            if _is_damage(error):
                self._start_anew()
            return str(error)
        return None

    def _start_anew(self) -> None:
        """Set the file aside; the next try writes everything that is known to a new one."""
        self._disconnect()
        with suppress(OSError):  # then the next try finds the damage again
            self._set_aside()
        with self._changed:
            known = {stream_id: _columns(row) for stream_id, row in self._kept.items()}
            self._waiting = {**known, **self._waiting}

    def _note(self, changes: Changes, n_told: int, failure: str | None) -> None:
        """What became of a try."""
        with self._changed:
            if failure is None:
                self._n_saved = n_told
                for stream_id, change in changes.items():
                    if self._waiting.get(stream_id) is change:  # else a newer one waits
                        self._waiting.pop(stream_id, None)
            else:
                self.n_failed += 1
                if self._failure is None:
                    log.error("%s cannot be written, is tried again: %s", self._path, failure)
            self._failure = failure
            wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()

    def _disconnect(self) -> None:
        database, self._database = self._database, None
        with suppress(sqlite3.Error):  # nothing is lost: the next start reads the log beside it
            if database is not None:
                database.close()

    # ── opening ──

    def _opened(self) -> _Opened:
        try:
            try:
                return self._loaded()
            except sqlite3.Error as error:
                if not _is_damage(error):
                    raise
                log.warning(
                    "%s is damaged (%s): it is set aside, its streams are lost", self._path, error
                )
                self._set_aside()
                return self._loaded()
        except sqlite3.Error as error:
            return self._read_only(error)
        except OSError as error:
            raise _cannot_open(self._path, error.strerror or str(error), way_out(error)) from error

    def _read_only(self, why: sqlite3.Error) -> _Opened:
        """What the file holds, where it cannot be written now: streams go on all the same."""
        try:
            with closing(sqlite3.connect(self._path, isolation_level=None)) as database:
                database.execute("PRAGMA locking_mode = EXCLUSIVE")  # makes no file beside it
                opened = _read(database)
        except sqlite3.Error:
            way = "free disk space, or give another folder"
            raise _cannot_open(self._path, str(why), way) from why
        log.error(
            "%s cannot be written, is tried again: %s; its %d streams go on, new ones are refused",
            self._path,
            why,
            len(opened.rows),
        )
        return opened._replace(database=None)

    def _loaded(self) -> _Opened:
        database = _connected(self._path)
        try:
            return _read(database)
        except BaseException:
            database.close()
            raise

    def _set_aside(self) -> None:
        """Out of the way, under a name that says when; the log beside it goes with it."""
        suffix = f".damaged-{self._clock.wall_ms()}"
        for path in (self._path, *_beside(self._path)):
            if path.exists():
                path.rename(path.with_name(path.name + suffix))


class _Opened(NamedTuple):
    database: sqlite3.Connection | None  # None: it cannot be written
    rows: list[Row]
    unreadable: list[str]  # ids


def _cannot_open(path: Path, why: str, way: str) -> SettingsInvalid:
    return SettingsInvalid(f"{path} (of state_dir) cannot be opened: {why}; {way}")


def _connected(path: Path) -> sqlite3.Connection:
    require_file(path)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OURS_ALONE))
    path.chmod(OURS_ALONE)  # SQLite gives the files beside it the same
    # One thread at a time, but not always the same: opened by the first, written by another.
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        version = _prepared(database)
        if version > SCHEMA_VERSION:
            raise SettingsInvalid(
                f"{path} (of state_dir) is from a newer liveedge: its version is {version}, this one"
                f" reads {SCHEMA_VERSION}; use that one, or another folder"
            )
    except BaseException:
        database.close()
        raise
    return database


def _prepared(database: sqlite3.Connection) -> int:
    """The version of its schema."""
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("PRAGMA secure_delete = ON")  # deleted passwords are overwritten
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise _Damaged(verdict)
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    if version < SCHEMA_VERSION:
        with _transaction(database):
            if version == 1:
                database.execute("ALTER TABLE streams ADD COLUMN mark TEXT")
            database.execute(_TABLE)
            database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    return version


def _read(database: sqlite3.Connection) -> _Opened:
    rows: list[Row] = []
    unreadable: list[str] = []
    for values in database.execute(_GET):
        found = dict(zip(_COLUMNS, values, strict=True))
        try:
            rows.append(_row(found))
        except (msgspec.DecodeError, TypeError, _NotOurs):
            log.warning(
                "stream %.80s was kept in a form that cannot be read; it is lost",
                ascii(found["id"])[1:-1],
            )
            unreadable.append(found["id"])
    return _Opened(database, rows, unreadable)


def _row(found: Mapping[str, Any]) -> Row:
    if not is_stream_id(found["id"]):
        raise _NotOurs
    if found["last_view"] is not None:
        view = msgspec.json.decode(found["last_view"], type=StreamView)
        if view.id != found["id"]:
            raise _NotOurs
        return EndedRow(tenant=found["tenant"], expires_at_ms=found["expires_at_ms"], view=view)
    mark = found["mark"]
    return ActiveRow(
        id=found["id"],
        tenant=found["tenant"],
        spec=msgspec.json.decode(found["source"], type=SourceSpec),
        created_at_ms=found["created_at_ms"],
        expires_at_ms=found["expires_at_ms"],
        finished=found["finished"],
        mark=None if mark is None else msgspec.json.decode(mark, type=StoreMark),
    )


def _columns(row: Row) -> Columns:
    values: dict[str, str | int | None] = dict.fromkeys(_COLUMNS)
    values.update(id=row.id, tenant=row.tenant, expires_at_ms=row.expires_at_ms)
    match row:
        case ActiveRow():
            source = msgspec.json.encode(row.spec).decode()
            values.update(created_at_ms=row.created_at_ms, source=source, finished=row.finished)
            if row.mark is not None:
                values.update(mark=msgspec.json.encode(row.mark).decode())
        case EndedRow():
            view = row.view
            values.update(created_at_ms=view.created_at_ms, ended_at_ms=view.ended_at_ms)
            values.update(end_reason=view.end_reason, last_view=msgspec.json.encode(view).decode())
    return values


def _write(database: sqlite3.Connection, changes: Changes) -> None:
    """All of them or none."""
    with _transaction(database):
        for stream_id, columns in changes.items():
            if columns is None:
                database.execute(_FORGET, (stream_id,))
            else:
                database.execute(_PUT, columns)
    if any(columns is None or columns["source"] is None for columns in changes.values()):
        # The log beside the file still has the row with the URL.
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


class _NotOurs(Exception):
    """A row that this program cannot have written."""


class _Damaged(sqlite3.DatabaseError):
    """Found by the check of the whole file."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def _is_damage(error: Exception) -> bool:
    """Whether trying again cannot help. SQLITE_ERROR is a table of other columns."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def _beside(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:  # the loop is closed: nobody waits there any more
        return
