"""`POST /watches`: a chat request, and when it is asked."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from liveedge.api.schema import ChatBody
from liveedge.service.change import DEFAULT_THRESHOLD, ChangeRule

MIN_EVERY_MS = 100
MAX_EVERY_MS = 3_600_000
MAX_UNTIL_MS = 253_402_300_799_999  # the last year with four digits
_OF_CHANGE = ("change_threshold", "debounce_ms", "min_interval_ms")


class WatchBody(ChatBody):
    """`POST /watches`. Exactly one of `every_ms` and `on` says when the question is asked."""

    every_ms: int | None = Field(
        None, ge=MIN_EVERY_MS, le=MAX_EVERY_MS, description="ask so often; busy moments are skipped"
    )
    on: Literal["change"] | None = Field(
        None, description="ask when the picture differs from the one last answered about"
    )
    change_threshold: float | None = Field(
        None,
        gt=0,
        le=1,
        description="with on: how much differs; 1 is 3 % of the picture, clearly."
        f" {DEFAULT_THRESHOLD} if left out",
    )
    debounce_ms: int | None = Field(
        None, ge=0, le=60_000, description="with on: a change has to last so long; 200 if left out"
    )
    min_interval_ms: int | None = Field(
        None,
        ge=MIN_EVERY_MS,
        le=MAX_EVERY_MS,
        description="with on: between two questions; 1000 if left out",
    )
    until: int | None = Field(
        None,
        ge=0,
        le=MAX_UNTIL_MS,
        description="end at this moment, Unix milliseconds; else with its streams",
    )
    max_results: int | None = Field(None, ge=1, description="end after so many answers")

    @model_validator(mode="after")
    def _says_when(self) -> Self:
        if (self.every_ms is None) == (self.on is None):
            raise ValueError('exactly one of every_ms and on: "change" says when to ask')
        given = [name for name in _OF_CHANGE if getattr(self, name) is not None]
        if self.on is None and given:
            raise ValueError(f'{", ".join(given)}: only with on: "change"')
        return self

    @property
    def rule(self) -> ChangeRule | None:
        """When a change is worth a question; None where it is asked by the clock."""
        if self.on is None:
            return None
        default = ChangeRule()
        return ChangeRule(
            threshold=self.change_threshold or default.threshold,
            debounce_s=default.debounce_s if self.debounce_ms is None else self.debounce_ms / 1000,
            min_interval_s=(
                default.min_interval_s
                if self.min_interval_ms is None
                else self.min_interval_ms / 1000
            ),
        )

    @property
    def pointless(self) -> tuple[str, ...]:
        """Fields of chat that were set, matter there, and cannot be honoured by a watch."""
        fields = [name for name in ("tools", "functions", "logprobs") if getattr(self, name)]
        if self.n is not None and self.n > 1:
            fields.append("n")
        return tuple(fields)
