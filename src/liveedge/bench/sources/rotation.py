"""What request number N asks, and which camera: fixed by the scenario alone.

Cameras take turns, so that the requests to one are spread evenly; each goes through all questions.
Which share of a mix, and which phrasing, is drawn by the number of the request.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from liveedge.bench.scenario import Scenario, ScenarioInvalid, Share
from liveedge.sim.questions import CLIP_KINDS, FRAME_KINDS, KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request: what to ask about which camera."""

    share: int  # its number in `Scenario.shares`
    source: int
    question: str  # the kind, or `prompt-N`
    text: str


class Rotation:
    """Turns by number. Raises ScenarioInvalid where a question cannot be asked of its media."""

    def __init__(self, scenario: Scenario) -> None:
        for share in scenario.shares:
            _check(share)
        self._seed = scenario.load.seed
        self._n_sources = scenario.sources.count
        self._weights = list(itertools.accumulate(share.weight for share in scenario.shares))
        self._asked = [self._shuffled(share) for share in scenario.shares]

    def at(self, index: int) -> Turn:
        """The same index gives the same turn in every run."""
        chance = random.Random(f"{self._seed}/{index}")
        share = self._drawn(chance)
        source, round_ = index % self._n_sources, index // self._n_sources
        asked = self._asked[share]
        question, phrasings = asked[(round_ + source) % len(asked)]
        text = phrasings[chance.randrange(len(phrasings))]
        return Turn(share=share, source=source, question=question, text=text)

    def _drawn(self, chance: random.Random) -> int:
        if len(self._weights) == 1:
            return 0
        drawn = chance.random() * self._weights[-1]
        return next((n for n, up_to in enumerate(self._weights) if drawn < up_to), 0)

    def _shuffled(self, share: Share) -> list[tuple[str, tuple[str, ...]]]:
        asked = [(kind, KINDS[kind].phrasings) for kind in share.kinds]
        asked += [(f"prompt-{n}", (prompt,)) for n, prompt in enumerate(share.prompts)]
        random.Random(f"{self._seed}/order").shuffle(asked)
        return asked


def _check(share: Share) -> None:
    where = f"the share {share.name!r} of the mix" if share.name else "the scenario"
    if not share.kinds and not share.prompts:
        raise ScenarioInvalid(f"{where} has neither kinds nor prompts: nothing would be asked")
    unknown = [kind for kind in share.kinds if kind not in KINDS]
    if unknown:
        raise ScenarioInvalid(
            f"{where} asks {', '.join(map(repr, unknown))}; known kinds are {', '.join(KINDS)}"
        )
    need_clips = [kind for kind in share.kinds if kind in CLIP_KINDS]
    if share.media.frames == 1 and need_clips:
        raise ScenarioInvalid(
            f"{where} asks {', '.join(need_clips)} of one frame, which cannot tell; set media.frames"
            f" above 1, or ask some of {', '.join(FRAME_KINDS)}"
        )
