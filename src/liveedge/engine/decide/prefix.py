"""Identity of prompt tokens, and the longest common prefix of two prompts.

Pure, torch-free. A text token is its id (zero or more). A visual token is a negative hash of its
group's content key and its place in the group, because every picture has the same placeholder id.
Equal prefixes of identities have equal KV: positions are a function of what stands before.

The first token carries the tenant, so that prompts of two tenants have no prefix in common: neither the
time of an answer nor its `cached_tokens` tells what somebody else has asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

_STRIDE = 0x9E3779B97F4A7C15  # odd, so that offsets of one group never meet
_SIGN = np.uint64(1 << 63)
_SEPARATOR = "\x1e"  # occurs in no content key
N_REMEMBERED: Final = 256  # groups; questions about a window have most of theirs in common


@lru_cache(N_REMEMBERED)
def visual_identity(key: str, n_tokens: int) -> NDArray[np.int64]:
    """Identities of the `n_tokens` visual tokens of the group with this content key; not to be
    written."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    base = np.uint64(int.from_bytes(digest, "little"))
    with np.errstate(over="ignore"):
        mixed = base + np.arange(n_tokens, dtype=np.uint64) * np.uint64(_STRIDE)
    identity = (mixed | _SIGN).view(np.int64)
    identity.setflags(write=False)
    return identity


def prompt_identity(
    ids: NDArray[np.int64], visuals: Iterable[tuple[int, int, str]], *, tenant: str = ""
) -> NDArray[np.int64]:
    """Identities of a prompt; `visuals` are (start, n_tokens, content key) of its groups. Without a
    tenant the prompt is nobody's."""
    identity = ids.copy()
    for start, n_tokens, key in visuals:
        identity[start : start + n_tokens] = visual_identity(key, n_tokens)
    if tenant and len(identity):
        identity[0] = visual_identity(f"{tenant}{_SEPARATOR}{identity[0]}", 1)[0]
    return identity


def common_prefix(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """How many leading identities are equal."""
    n = min(len(a), len(b))
    different = a[:n] != b[:n]
    first = int(different.argmax()) if n else 0
    return first if n and different[first] else n
