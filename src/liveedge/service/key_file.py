"""The file of stored keys: an SQLite database that the command line writes and servers watch.

Owns    one connection to it. All methods block for a moment; one thread at a time.
Holds   no key: a key is 256 random bits, so one SHA-256 of it is as good as any slow hash, and lets
        nobody find the key. Its id is part of it and no secret.
Never   readable by other users of the machine: a digest can be replaced.

Written in WAL mode: the command line writes while servers read. `changed` asks SQLite whether another
connection has committed (`data_version`), which reads one word of shared memory.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from liveedge.core.errors import SettingsInvalid
from liveedge.service.caller import SCOPES, Allowance, Scope
from liveedge.service.state_dir import FOLDER_OURS_ALONE, OURS_ALONE, require_file, way_out

SCHEMA_VERSION = 1
APPLICATION_ID = 0x6C656B79  # "leky": whose file it is, in its header
BUSY_S = 5.0  # how long another writer is waited for
_COLUMNS = (
    "id, name, owner, digest, scopes, requests_per_second, request_burst, max_requests,"
    " max_streams, created_at_ms, expires_at_ms, revoked_at_ms"
)
_TABLE = """
CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    owner TEXT NOT NULL,
    digest TEXT NOT NULL,          -- SHA-256 of the whole key, in hex
    scopes TEXT NOT NULL,          -- separated by commas
    requests_per_second REAL,      -- NULL here and below: what the server gives to every key
    request_burst INTEGER,
    max_requests INTEGER,
    max_streams INTEGER,
    created_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER,         -- NULL: never
    revoked_at_ms INTEGER          -- NULL: not
) STRICT
"""


def digest_of(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """One row."""

    id: str
    name: str
    owner: str
    digest: str
    scopes: frozenset[Scope]
    allowance: Allowance
    created_at_ms: int
    expires_at_ms: int | None = None
    revoked_at_ms: int | None = None

    @property
    def tenant(self) -> str:
        """Never that of a key from the settings, however the owner is called."""
        return f"owner:{self.owner}"

    def is_live(self, now_ms: int) -> bool:
        """Whether it opens anything."""
        is_over = self.expires_at_ms is not None and now_ms >= self.expires_at_ms
        return self.revoked_at_ms is None and not is_over


class KeyFile:
    """An open file of keys. Raises SettingsInvalid for one that is foreign, damaged or missing."""

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path.expanduser().absolute()
        self._create = create
        self._database: sqlite3.Connection | None = None
        self._seen: tuple[int, ...] | None = None  # the file and its version, as last read
        with self._explained():
            self._connect()

    def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            with suppress(sqlite3.Error):
                database.close()

    def keys(self) -> tuple[StoredKey, ...]:
        """Every key that was ever made, oldest first."""
        with self._explained():
            self._seen = self._version()
            rows = self._sql(f"SELECT {_COLUMNS} FROM keys ORDER BY created_at_ms, id").fetchall()
            return tuple(map(_key, rows))

    def changed(self) -> bool:
        """Whether `keys` may say something else than the last time."""
        with self._explained():
            return self._version() != self._seen

    def add(self, key: StoredKey) -> None:
        """Store a new key."""
        mine = key.allowance
        row = (
            key.id,
            key.name,
            key.owner,
            key.digest,
            ",".join(scope for scope in SCOPES if scope in key.scopes),
            mine.requests_per_second,
            mine.request_burst,
            mine.max_requests,
            mine.max_streams,
            key.created_at_ms,
            key.expires_at_ms,
            key.revoked_at_ms,
        )
        with self._explained():
            places = ",".join("?" * len(row))
            self._sql(f"INSERT INTO keys ({_COLUMNS}) VALUES ({places})", row)

    def revoke(self, key_id: str, *, now_ms: int) -> StoredKey:
        """End a key for ever; once more does nothing. Raises SettingsInvalid for an unknown one."""
        with self._explained():
            self._sql(
                "UPDATE keys SET revoked_at_ms = ? WHERE id = ? AND revoked_at_ms IS NULL",
                (now_ms, key_id),
            )
        for key in self.keys():
            if key.id == key_id:
                return key
        raise SettingsInvalid(
            f"there is no key {key_id[:40]!r} in {self.path}: `liveedge keys list` shows the ids"
        )

    # ── inside ──

    def _sql(self, text: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        assert self._database is not None, "closed"
        return self._database.execute(text, values)

    def _version(self) -> tuple[int, ...]:
        """Another file under the same name is opened anew; it may have the number of the old one."""
        if self._seen is not None and self._seen[:-1] != self._place():
            self.close()
        if self._database is None:
            self._connect()
        (version,) = self._sql("PRAGMA data_version").fetchone()
        return (*self._place(), version)

    def _place(self) -> tuple[int, ...]:
        found = self.path.stat()
        return (found.st_dev, found.st_ino, found.st_ctime_ns)

    def _connect(self) -> None:
        if self._create:
            self.path.parent.mkdir(mode=FOLDER_OURS_ALONE, parents=True, exist_ok=True)
        require_file(self.path)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if self._create else 0)
        os.close(os.open(self.path, flags, OURS_ALONE))
        database = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=BUSY_S
        )
        try:
            _prepare(database, self.path)
        except BaseException:
            database.close()
            raise
        self._database = database
        self._seen = None  # versions are counted by each connection for itself

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise SettingsInvalid(
                f"there is no file of keys at {self.path}: `liveedge keys create` makes one"
            ) from error
        except OSError as error:
            raise SettingsInvalid(
                f"keys file {self.path} cannot be used: {error.strerror or error}; {way_out(error)}"
            ) from error
        except sqlite3.OperationalError as error:  # of its place, not of what is in it
            raise SettingsInvalid(
                f"keys file {self.path} cannot be used: {error}; see whether its disk is full or may"
                " only be read, and whether another program holds it"
            ) from error
        except (sqlite3.Error, ValueError) as error:
            raise SettingsInvalid(
                f"keys file {self.path} cannot be read, it is damaged or something else: {error};"
                " bring back a copy of it, or give another one"
            ) from error


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    """Make it ours if it is empty. Raises SettingsInvalid for what is somebody else's, untouched."""
    if not _is_ours(database, path):
        database.execute("BEGIN IMMEDIATE")  # two may make the same file at once
        if not _is_ours(database, path):
            database.execute(_TABLE)
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        database.execute("COMMIT")
    database.execute("PRAGMA journal_mode = WAL")
    if path.stat().st_mode & 0o777 != OURS_ALONE:
        path.chmod(OURS_ALONE)  # SQLite gives the files beside it the same


def _is_ours(database: sqlite3.Connection, path: Path) -> bool:
    """False for an empty file."""
    (owner,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (n_tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if (owner, version, n_tables) == (0, 0, 0):
        return False
    if owner != APPLICATION_ID:
        raise SettingsInvalid(
            f"{path} is a database of something else, not a file of keys: give another name"
        )
    if version != SCHEMA_VERSION:
        raise SettingsInvalid(
            f"keys file {path} is from another version of liveedge: its version is {version},"
            f" this one reads {SCHEMA_VERSION}"
        )
    return True


def _key(row: tuple[Any, ...]) -> StoredKey:
    """Raises ValueError for what nobody wrote here."""
    key_id, name, owner, digest, scopes, rate, burst, requests, streams, *times = row
    return StoredKey(
        id=key_id,
        name=name,
        owner=owner,
        digest=digest,
        scopes=frozenset(map(as_scope, filter(None, scopes.split(",")))),
        allowance=Allowance(
            requests_per_second=rate,
            request_burst=burst,
            max_requests=requests,
            max_streams=streams,
        ),
        created_at_ms=times[0],
        expires_at_ms=times[1],
        revoked_at_ms=times[2],
    )


def as_scope(text: str) -> Scope:
    """Raises ValueError."""
    for scope in SCOPES:
        if text == scope:
            return scope
    raise ValueError(f"{text[:40]!r} is not a scope: {', '.join(SCOPES)}")
