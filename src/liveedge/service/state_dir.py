"""The folder that keeps a server's streams over a restart: made, locked, and closed to others.

Owns    the folder and the lock on it, the secret of publish tokens, and a folder per stream for its
        frames (`frames.store` owns what is inside).
Layout  `lock`, `publish-tokens.key`, `streams.sqlite3` (`service.registry`), `keys.sqlite`
        (`service.key_file`, which others write too), `streams/<stream id>/`;
        `streams/<stream id>.ended/` once it is deleted; `lost-<when>/<stream id>/`: frames for which
        the registry has no stream, kept for LOST_KEPT_MS.
Never   readable by other users of the machine: it holds pictures, and URLs with passwords.

The lock belongs to the process: it goes with it, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import shutil
import uuid
from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path

from liveedge.core.errors import SettingsInvalid, StreamLimitReached

log = logging.getLogger("liveedge.service")

OURS_ALONE = 0o600
FOLDER_OURS_ALONE = 0o700
SECRET_BYTES = 32
KEPT_FREE_BYTES = 64 << 20  # for the registry, and for whatever else lives on the disk
LOST_KEPT_MS = 24 * 3600 * 1000
MIB = 1 << 20
_ENDED = ".ended"
_LOST = "lost-"
_NO_RIGHT = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}

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
                f"state_dir {self.path} cannot be used: {error.strerror or error}"
                f" ({error.filename or self.path}); {way_out(error)}"
            ) from error

    @property
    def database(self) -> Path:
        return self.path / "streams.sqlite3"

    def frames_of(self, stream_id: str) -> Path:
        """Where the frames of a stream are kept; there may be nothing yet."""
        return self._streams / stream_id

    def note_ended(self, stream_id: str) -> bool:
        """Have a restart know that this stream was deleted, on a full disk too: the frames' folder
        gets another name. False where nothing could be noted."""
        frames, ended = self.frames_of(stream_id), self._ended(stream_id)
        with suppress(OSError):
            if frames.is_dir():
                frames.rename(ended)
            else:
                ended.mkdir(mode=FOLDER_OURS_ALONE)
        return self.has_ended(stream_id)

    def has_ended(self, stream_id: str) -> bool:
        """Whether `note_ended` was called, in this process or an earlier one."""
        return self._ended(stream_id).is_dir()

    def empty_ended(self, stream_id: str) -> None:
        """Delete the frames and leave the note. Blocks."""
        with suppress(OSError):  # the next start tries again
            for path in self._ended(stream_id).iterdir():
                remove(path)

    def forget_ended(self, stream_id: str) -> None:
        """Delete the note: the registry knows. Blocks."""
        remove(self._ended(stream_id))

    def _ended(self, stream_id: str) -> Path:
        return self._streams / f"{stream_id}{_ENDED}"

    def orphans(self, known: Container[str]) -> list[Path]:
        """Folders of streams that nobody knows: left by a process that was killed in between, or
        all that is left after the registry was lost."""
        names = {path: path.name.partition(".")[0] for path in self._streams.iterdir()}
        return sorted(path for path, name in names.items() if name not in known)

    def set_aside(self, folders: list[Path], *, now_ms: int) -> Path:
        """Keep these for a while; where they are then."""
        place = self.path / f"{_LOST}{now_ms}"
        try:
            place.mkdir(mode=FOLDER_OURS_ALONE)
            for folder in folders:
                folder.rename(place / folder.name)
        except OSError:  # a full disk: they stay where they are, and the next start finds them
            return self._streams
        return place

    def overdue(self, *, now_ms: int) -> list[Path]:
        """What `set_aside` has kept for long enough."""
        aged = {path: path.name.removeprefix(_LOST) for path in self.path.glob(f"{_LOST}*")}
        return [
            path
            for path, since in aged.items()
            if since.isdecimal() and int(since) <= now_ms - LOST_KEPT_MS
        ]

    def free_bytes(self) -> int:
        """What may still be written here."""
        return self._free(self._streams)

    def require_room(self, n_bytes: int) -> None:
        """Raise StreamLimitReached where the disk has no room for another stream's frames."""
        needed = n_bytes + KEPT_FREE_BYTES
        try:
            free = self.free_bytes()
        except OSError as error:
            raise StreamLimitReached(
                f"no stream can be created: the server's folder {self.path} (state_dir) is not usable"
                f" any more: {error.strerror} ({error.filename}); put it back, or restart the server"
            ) from error
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


def way_out(error: OSError) -> str:
    """What to do about a file or folder that cannot be used."""
    if error.errno in _NO_SPACE:
        return "free disk space, or give another folder"
    if error.errno in _NO_RIGHT:
        return "give a folder that this user may write to"
    return "move away what is there, or give another folder"


def require_file(path: Path) -> None:
    """Raise OSError where there is something else: opening a pipe would wait for ever."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.is_symlink() and not path.exists():
        raise FileNotFoundError(errno.ENOENT, "it is a link to nothing", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file", str(path))


def holds_frames(folder: Path) -> bool:
    """Whether it looks like that of a stream."""
    return is_stream_id(folder.name) and (folder / "index").is_file()


def is_stream_id(name: str) -> bool:
    """Whether `service.streams` can have given it: it becomes the name of a folder."""
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False


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
    require_file(path)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OURS_ALONE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(OSError):  # a full disk: then the pid is not told, and nothing else is lost
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
    require_file(path)
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
