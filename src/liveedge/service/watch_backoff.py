"""How long a watch that fails or was refused stays silent. Pure."""

from __future__ import annotations

FIRST_S = 1.0
MOST_S = 60.0  # unless the error itself asks for more patience
JITTER = 0.25  # watches that fail together do not come back together


def back_off_s(
    n_failures: int, *, every_s: float, retry_after_s: float | None, chance: float
) -> float:
    """After so many failures in a row. `chance` is 0 to 1."""
    grown_s = max(FIRST_S, every_s) * 2.0 ** min(n_failures - 1, 20)
    wait_s = max(min(grown_s, MOST_S), every_s, retry_after_s or 0.0)
    return wait_s * (1.0 + JITTER * chance)


def come_back_s(retry_after_s: float | None, *, chance: float) -> float:
    """After a refusal because others come first: as long as it says."""
    return max(FIRST_S, retry_after_s or 0.0) * (1.0 + JITTER * chance)
