"""The folder that keeps a server's streams over a restart: made, locked, and closed to others.

Owns    the folder and the lock on it, the secret of publish tokens, and a folder per stream for its
        frames (`frames.store` owns what is inside).
Layout  `lock`, `publish-tokens.key`, `streams.sqlite3` (`service.registry`), `streams/<stream id>/`.
Never   readable by other users of the machine: it holds pictures, and URLs with passwords.

The lock belongs to the process: it goes with it, however it ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Container
from pathlib import Path

from liveedge.core.errors import SettingsInvalid, StreamLimitReached

log = logging.getLogger("liveedge.service")

OURS_ALONE = 0o600
FOLDER_OURS_ALONE = 0o700
SECRET_BYTES = 32
KEPT_FREE_BYTES = 64 << 20  # for the registry, and for whatever else lives on the disk
MIB = 1 << 20

FreeBytes = Callable[[Path], int]


def free_bytes(folder: Path) -> int:
    """What this user may still write to the disk under `folder`."""
    return shutil.disk_usage(folder).free


class StateDir:
    """One server's folder, from the start to the end of its process.

    Raises SettingsInvalid where it cannot be made, written or locked.
    """

    def __init__(self, path: Path, *, free: FreeBytes = free_bytes) -> None:
        self.path = path.expanduser().absolute()
        self._free = free
        self._streams = self.path / "streams"
        self._lock: int | None = None
        try:
            self.path.mkdir(mode=FOLDER_OURS_ALONE, parents=True, exist_ok=True)
            self._lock = _locked(self.path / "lock")
            self._streams.mkdir(mode=FOLDER_OURS_ALONE, exist_ok=True)
            self._streams.chmod(FOLDER_OURS_ALONE)
            self.secret = _secret(self.path / "publish-tokens.key")
        except _InUse as error:
            raise SettingsInvalid(
                f"state_dir {self.path} is in use by another liveedge server{error}; stop that one,"
                " or give this one a folder of its own"
            ) from None
        except OSError as error:
            self.close()
            raise SettingsInvalid(
                f"state_dir {self.path} cannot be used: {error.strerror or error}; give a folder"
                " that this user may write to"
            ) from error

    @property
    def database(self) -> Path:
        return self.path / "streams.sqlite3"

    def frames_of(self, stream_id: str) -> Path:
        """Where the frames of a stream are kept; there may be nothing yet."""
        return self._streams / stream_id

    def orphans(self, known: Container[str]) -> list[Path]:
        """Folders of streams that nobody knows: left by a process that was killed in between."""
        return sorted(path for path in self._streams.iterdir() if path.name not in known)

    def free_bytes(self) -> int:
        """What may still be written here."""
        return self._free(self._streams)

    def require_room(self, n_bytes: int) -> None:
        """Raise StreamLimitReached where the disk has no room for another stream's frames."""
        needed = n_bytes + KEPT_FREE_BYTES
        free = self.free_bytes()
        if free < needed:
            raise StreamLimitReached(
                f"no disk space for another stream: its frames may take {n_bytes // MIB} MB, and the"
                f" disk of {self.path} (state_dir) has {free // MIB} MB free, of which"
                f" {KEPT_FREE_BYTES // MIB} MB stay free: {-(-(needed - free) // MIB)} MB are missing."
                " Free some, end a stream, or lower history_mb"
            )

    def close(self) -> None:
        """Let another server have the folder. Again does nothing."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def remove(folder: Path) -> None:
    """Delete a folder with what is inside; what is gone already, or cannot go, is left alone."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)
    else:
        folder.unlink(missing_ok=True)
    if folder.exists():
        log.warning("%s could not be deleted and takes disk space", folder)


class _InUse(Exception):
    """Who has the lock, as the end of a clause; empty where that is not known."""


def _locked(path: Path) -> int:
    """An open file with the lock on it. Not inherited by child processes."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OURS_ALONE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        pid = os.pread(lock, 20, 0).decode(errors="replace")
        os.close(lock)
        raise _InUse(f" (process {pid})" if pid.isdigit() else "") from None
    except BaseException:
        os.close(lock)
        raise
    return lock


def _secret(path: Path) -> bytes:
    """The secret that was kept, or a new one. Tokens of a lost one are refused, and renewed by
    keepalive."""
    try:
        kept = path.read_bytes()
    except FileNotFoundError:
        kept = b""
    else:
        path.chmod(OURS_ALONE)
        if len(kept) == SECRET_BYTES:
            return kept
        log.warning("%s is damaged: publishers need new tokens, from keepalive", path)
    made = secrets.token_bytes(SECRET_BYTES)
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    opened = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OURS_ALONE)
    with os.fdopen(opened, "wb") as file:
        file.write(made)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return made
