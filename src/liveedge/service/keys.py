"""The accepted keys: those of the settings, and those of a file that may change at any time.

Owns    the file of keys, which a thread looks at every POLL_S; a request reads only memory.
Thread  the event loop, but for that look.
Never   opens by itself: once keys are expected, a file that is empty, lost or damaged lets nobody new
        in. What was read last holds until it can be read again.

A key is `le_<id>_<secret>`; the id is shown in lists and logs, and finds the row. Every other key is
compared with all of the settings. How long a comparison takes tells nothing: unknown, revoked and
expired keys take the same way, and only who has the secret hears that a key has ended.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from liveedge.core.clock import Clock
from liveedge.core.errors import SettingsInvalid
from liveedge.core.tasks import TaskSet
from liveedge.service.audit import Audit, Refusal
from liveedge.service.caller import Allowance, Caller, Scope
from liveedge.service.key_file import KeyFile, StoredKey, digest_of
from liveedge.service.workers import Workers

log = logging.getLogger("liveedge.service")

OPEN = Caller(tenant="open", key_id="open")
POLL_S = 0.5
ID_BYTES = 5
SECRET_BYTES = 32
_KEY = re.compile(r"le_([0-9a-f]{10})_[0-9a-f]{64}")
_NOBODY = digest_of("")  # compared where there is no row, so that this takes as long


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a key opens nothing."""

    reason: Refusal
    message: str
    key_id: str | None = None  # only of a key whose secret was right


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """What a key shall be."""

    name: str
    owner: str | None  # None: itself
    scopes: frozenset[Scope]
    allowance: Allowance
    expires_at_ms: int | None


def made(new: NewKey, *, now_ms: int) -> tuple[str, StoredKey]:
    """A random key, which is kept nowhere, and its row."""
    key_id = secrets.token_hex(ID_BYTES)
    key = f"le_{key_id}_{secrets.token_hex(SECRET_BYTES)}"
    row = StoredKey(
        id=key_id,
        name=new.name,
        owner=new.owner or key_id,
        digest=digest_of(key),
        scopes=new.scopes,
        allowance=new.allowance,
        created_at_ms=now_ms,
        expires_at_ms=new.expires_at_ms,
    )
    return key, row


class KeyRing:
    """Who may come in."""

    def __init__(
        self,
        fixed: Sequence[str],
        *,
        clock: Clock,
        audit: Audit,
        path: Path | None = None,
        create: bool = False,
    ) -> None:
        """`path` is where the file of keys is or, unless `create`, may come to be. Raises
        SettingsInvalid."""
        self._fixed = tuple(dict.fromkeys(map(digest_of, fixed)))
        self._clock = clock
        self._audit = audit
        self._path = path
        self._create = create
        self._file: KeyFile | None = None
        self._stored: dict[str, StoredKey] = {}
        self._live: dict[str, StoredKey] = {}  # of these; who leaves it is told to the listeners
        self._listeners: list[Callable[[StoredKey], None]] = []
        self._worker = Workers("keys", n_threads=1)
        self._watching = TaskSet("keys")
        self._trouble: str | None = None
        self.is_open = not self._fixed  # until there is a file
        found = self._look()
        if found is not None:
            self._take(found, is_first=True)

    def on_end(self, listener: Callable[[StoredKey], None]) -> None:
        """Call `listener` with every stored key that is revoked or expires."""
        self._listeners.append(listener)

    @property
    def n_live(self) -> int:
        """Stored keys that are accepted."""
        return len(self._live)

    @property
    def is_shared(self) -> bool:
        """Whether there are, or may come to be, several keys."""
        return self._file is not None or len(self._fixed) > 1

    def has_key_of(self, tenant: str) -> bool:
        """Whether a stored key still stands for this owner."""
        return any(key.tenant == tenant for key in self._live.values())

    def find(self, key: str) -> Caller | Refused:
        """Who is behind a key."""
        if self.is_open:
            return OPEN
        digest = digest_of(key)
        match = _KEY.fullmatch(key)
        stored = None if match is None else self._stored.get(match[1])
        is_stored = hmac.compare_digest(digest, _NOBODY if stored is None else stored.digest)
        # One by one in constant time: how long it takes must not tell how near a guess is.
        is_fixed = any([hmac.compare_digest(digest, known) for known in self._fixed])  # noqa: C419  all of them, always
        if is_fixed:
            return Caller(tenant=digest[:16], key_id=digest[:16])
        if stored is None or not is_stored:
            return Refused("unknown_key", "unknown key")
        if stored.revoked_at_ms is not None:
            return Refused("revoked_key", f"the key {stored.id} was revoked", stored.id)
        if not stored.is_live(self._clock.wall_ms()):
            return Refused("expired_key", f"the key {stored.id} has expired", stored.id)
        return Caller(
            tenant=stored.tenant,
            key_id=stored.id,
            scopes=stored.scopes,
            allowance=stored.allowance,
        )

    def start(self) -> None:
        """Begin to look at the file."""
        if self._path is not None:
            self._watching.start(self._watch(), name="watch")

    async def close(self) -> None:
        await self._watching.close()
        self._worker.close()
        if self._file is not None:
            self._file.close()

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(POLL_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Learn now what has changed."""
        try:
            found = await self._worker.run(self._look)
        except SettingsInvalid as error:
            if error.message != self._trouble:
                log.error("%s; the keys that were read before stay as they were", error.message)  # noqa: TRY400  not a defect
            self._trouble = error.message
            found = None
        else:
            self._trouble = None
        if found is not None:
            self._take(found)
        self._end_expired()

    def _look(self) -> tuple[StoredKey, ...] | None:
        """Blocking. All keys if they may have changed. Raises SettingsInvalid."""
        if self._path is None:
            return None
        if self._file is None:
            if not self._create and not self._path.expanduser().exists():
                return None
            self._file = KeyFile(self._path, create=self._create)
            return self._file.keys()
        return self._file.keys() if self._file.changed() else None

    def _take(self, found: tuple[StoredKey, ...], *, is_first: bool = False) -> None:
        self.is_open = False
        now_ms = self._clock.wall_ms()
        before = self._live
        self._stored = {key.id: key for key in found}
        self._live = {key.id: key for key in found if key.is_live(now_ms)}
        for key in self._live.values():
            if key.id not in before and not is_first:
                self._audit.key("key_created", key_id=key.id, name=key.name, owner=key.owner)
        for key in before.values():
            if key.id not in self._live:
                self._ended(key)

    def _end_expired(self) -> None:
        now_ms = self._clock.wall_ms()
        for key in [key for key in self._live.values() if not key.is_live(now_ms)]:
            del self._live[key.id]
            self._ended(key)

    def _ended(self, key: StoredKey) -> None:
        now = self._stored.get(key.id)
        was_revoked = now is None or now.revoked_at_ms is not None
        what = "key_revoked" if was_revoked else "key_expired"
        self._audit.key(what, key_id=key.id, name=key.name, owner=key.owner)
        for listener in self._listeners:
            listener(key)
