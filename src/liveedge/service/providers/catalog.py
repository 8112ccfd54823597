"""All models that can be asked, ours and those of providers, and who answers for each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from liveedge.core.errors import ModelNotFound
from liveedge.service.limits import Budget
from liveedge.service.models import MAX_NAMED, ModelEntry, ModelHost
from liveedge.service.parts import Reference
from liveedge.service.providers.breaker import Breaker, State
from liveedge.service.providers.config import ProviderConfig
from liveedge.service.providers.retries import RetryBudget
from liveedge.service.question import Answers, Question

# How a request to a provider ends; a retry is a request.
OUTCOMES = ("ok", "http_4xx", "http_429", "http_5xx", "failed", "timeout", "blocked", "left")


class Refreshed(Protocol):
    """What is known of a provider, asked for when somebody wants to know."""

    is_up: bool

    async def refresh(self) -> None: ...


class Checked(Answers, Protocol):
    """Answers questions, now or later."""

    async def check(self, question: Question) -> Sequence[Reference]:
        """Raise what `answer` would raise before it looks for frames; give the references."""
        ...


class ModelProvider(Checked, Protocol):
    """A server that answers with models of its own."""

    config: ProviderConfig
    outcomes: Mapping[str, int]
    connections: Budget
    breaker: Breaker
    retries: RetryBudget

    @property
    def availability(self) -> Refreshed: ...
    @property
    def state(self) -> State: ...
    def entries(self) -> tuple[ModelEntry, ...]: ...
    async def close(self) -> None: ...


def owner_of(model: str, configs: Sequence[ProviderConfig]) -> str | None:
    """The provider that has a model of this id, if it is not ours: the one that lists it, else for
    an id without a slash the one that lists none."""
    for config in configs:
        if model in config.models:
            return config.name
    takes_all = next((config.name for config in configs if not config.models), None)
    return None if "/" in model else takes_all


class Catalog:
    """Who answers for which id."""

    def __init__(
        self, *, models: ModelHost, local: Checked, providers: Sequence[ModelProvider] = ()
    ) -> None:
        self.providers = tuple(providers)
        self._models = models
        self._local = local
        self._configs = tuple(provider.config for provider in providers)

    def answers(self, model: str) -> Checked:
        """Whoever answers for a model. Raises ModelNotFound."""
        if self._models.serves(model):
            return self._local
        owner = owner_of(model, self._configs)
        for provider in self.providers:
            if provider.config.name == owner:
                return provider
        if not self.providers:
            return self._local  # which says that there is none
        names = [entry.id for entry in self.known()]
        more = len(names) - MAX_NAMED
        shown = ", ".join(names[:MAX_NAMED]) + (
            f" and {more} more (GET /models)" if more > 0 else ""
        )
        raise ModelNotFound(f"there is no model {model[:200]!r}; there is {shown}")

    def known(self) -> tuple[ModelEntry, ...]:
        """One line per id, as known now."""
        entries = {entry.id: entry for entry in self._models.entries()}
        for provider in self.providers:
            for entry in provider.entries():
                entries.setdefault(entry.id, entry)
        return tuple(entries.values())

    async def entries(self) -> tuple[ModelEntry, ...]:
        """The same, after asking the providers whose last answer is old; takes a second at most."""
        await asyncio.gather(*(provider.availability.refresh() for provider in self.providers))
        return self.known()

    async def close(self) -> None:
        """Stop asking."""
        for provider in self.providers:
            await provider.close()
