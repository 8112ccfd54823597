"""Answers computed again without anything reused, to prove that warm and cold are the same.

A share of the answers that reused a prefix or cached features keeps the logits of its first tokens.
When such an answer is finished, its prompt and tokens run once more as background work under names
that nothing matches: every frame is loaded, encoded and prefilled afresh. The runner compares.
Where the exact pixels of a group are gone, the features that the encoder cache has of it stand in
for them, and the answer is counted apart: then everything behind the encoder was computed again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from liveedge.engine.decide.plan import SALT, Compare, Compared, source_key
from liveedge.engine.decide.prefix import prompt_identity
from liveedge.engine.decide.sequence import Marks, Sequence, Verifying
from liveedge.engine.interface import FeatureGroup, PreparedRequest

log = logging.getLogger("liveedge.engine")

N_ROWS: Final = 16  # tokens of an answer that are compared
TOLERANCE: Final = 1e-4  # of the largest logit: float rounding in another order of sums


@dataclass(slots=True)
class VerifyCounters:
    """Since the start."""

    verified: int = 0  # with every group encoded again
    with_cached_features: int = 0  # verified, but some groups were not encoded again
    differences: int = 0  # of both kinds
    skipped: int = 0  # a frame and its features were gone, or too many waited


class Verifier:
    """Chooses answers, makes them cold, and judges what the runner found."""

    def __init__(
        self, *, share: float, chance: Callable[[], float], tolerance: float = TOLERANCE
    ) -> None:
        self.counters = VerifyCounters()
        self._share = share
        self._chance = chance  # uniform in [0, 1)
        self._tolerance = tolerance
        self._n_made = 0

    def chooses(self, sequence: Sequence) -> bool:
        """Asked once per answer, before its first token."""
        reused = sequence.n_reused > 0 or bool(sequence.warm)
        return reused and self._share > 0 and self._chance() < self._share

    def cold(self, answer: Sequence, *, order: int, now_s: float) -> Sequence:
        """The work that computes a finished answer again."""
        self._n_made += 1
        n_rows = min(N_ROWS, answer.n_sampled)
        prepared = _cold(answer, n_rows, f"verification {self._n_made}")
        return Sequence(
            prepared=prepared,
            order=order,
            marks=Marks(submitted_s=now_s),
            background=Verifying(
                answer_id=answer.request_id,
                cold=prepared,
                first=answer.prepared.n_tokens - 1,
                n_rows=n_rows,
                origin=f"{answer.n_reused} tokens and {len(answer.warm)} groups reused",
            ),
        )

    def skip(self, why: str) -> None:
        """A chosen answer is not computed again. Said once: silence would pass for agreement."""
        self.counters.skipped += 1
        if self.counters.skipped == 1:
            log.warning("verify_warm: an answer is skipped, and others may be: %s", why)

    def judge(self, sequence: Sequence) -> None:
        """What the cold run gave beside what the answer had."""
        goal, pieces = sequence.background, sequence.compared
        assert isinstance(goal, Verifying), goal
        if not pieces:
            self.skip("its first tokens were not kept")
            return
        n_cached = sum(SALT not in group.key for group in sequence.prepared.groups)
        if n_cached:
            self.counters.with_cached_features += 1
        else:
            self.counters.verified += 1
        # NaN is a difference: no comparison with it is true.
        bad = [p for p in pieces if not p.max_difference <= self._limit(p)]
        if not bad:
            return
        self.counters.differences += 1
        worst = max(bad, key=lambda piece: piece.max_difference)
        tokens = [row for piece in bad for row in piece.differing]
        log.error(
            "request %s (%s) computed again %s differs: logits by %.3g, allowed %.3g; %s",
            goal.answer_id,
            goal.origin,
            f"with cached features of {n_cached} groups" if n_cached else "cold",
            worst.max_difference,
            self._limit(worst),
            "; ".join(f"token {n}: {warm} warm, {cold} cold" for n, warm, cold in tokens)
            or "the same tokens are the most probable",
        )

    def _limit(self, found: Compared) -> float:
        return self._tolerance * max(1.0, found.scale)


def with_cached_features(prepared: PreparedRequest, salted_key: str) -> PreparedRequest:
    """The same prompt with a group under its own name, so that its cached features are read."""
    groups = tuple(
        replace(group, key=source_key(group.key)) if group.key == salted_key else group
        for group in prepared.groups
    )
    # The first token keeps its salt: still nothing of it matches anything.
    spans = [(group.start, group.n_tokens, group.key) for group in groups]
    identity = prompt_identity(prepared.ids, spans)
    identity[0] = prepared.identity[0]
    return replace(prepared, groups=groups, identity=identity)


def compare_rows(goal: Verifying, start: int, stop: int) -> Compare | None:
    """The places of a piece whose logits are compared."""
    rows = [
        (place - start, place - goal.first)
        for place in range(max(start, goal.first), min(stop, goal.first + goal.n_rows))
    ]
    return Compare(goal.answer_id, tuple(rows)) if rows else None


def _cold(answer: Sequence, n_rows: int, salt: str) -> PreparedRequest:
    prepared = answer.prepared
    fed = np.array(answer.tokens[: n_rows - 1], dtype=np.int64)
    ids = np.concatenate((prepared.ids, fed))
    places = np.arange(prepared.n_tokens, len(ids), dtype=np.int64) + prepared.position_delta
    groups = tuple(_salted(group, salt) for group in prepared.groups)
    identity = prompt_identity(ids, [(g.start, g.n_tokens, g.key) for g in groups])
    identity[0] = prompt_identity(ids[:1], [(0, 1, salt)])[0]  # so nothing of it matches anything
    return replace(
        prepared,
        request=replace(
            prepared.request,
            request_id=f"{prepared.request.request_id} {salt}",
            deadline_s=None,
            fresh_until_s=None,
        ),
        ids=ids,
        positions=np.concatenate((prepared.positions, np.tile(places, (3, 1))), axis=1),
        identity=identity,
        groups=groups,
    )


def _salted(group: FeatureGroup, salt: str) -> FeatureGroup:
    return replace(group, key=f"{group.key}{SALT}{salt}")
