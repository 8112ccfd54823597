"""What is known of a provider before it is asked, and which models there are altogether."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from liveedge.core.errors import SettingsInvalid


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderConfig:
    """One OpenAI-compatible server."""

    name: str
    base_url: str  # up to and including /v1; no slash at the end
    key: str | None = field(default=None, repr=False)
    models: tuple[str, ...] = ()  # none: every id without a slash that is nobody else's
    media: Literal["images", "video"] = "images"  # how a segment is sent
    silence_s: float = 60.0  # it may be silent for so long: before its answer and within
    retries: int = 2  # of one question, before its first token
    max_connections: int = 32
    max_frames: int = 64  # of one question
    max_pixels: int | None = None  # of each picture; None: as it is
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # sent with every question


def read_key(name: str, variable: str | None, environment: Mapping[str, str]) -> str | None:
    """The key of a provider. Raises SettingsInvalid where its variable is not set."""
    if variable is None:
        return None
    key = environment.get(variable, "").strip()
    if not key:
        raise SettingsInvalid(
            f"providers.{name}: the environment variable {variable} (api_key_env) is not set; set it"
            " to the provider's key, or leave api_key_env out"
        )
    if not key.isascii() or not key.isprintable():
        raise SettingsInvalid(
            f"providers.{name}: what the environment variable {variable} holds cannot be sent in a"
            " header; it must be printable ASCII"
        )
    return key


def check_ids(
    providers: Sequence[ProviderConfig],
    fallbacks: Mapping[str, Sequence[str]],
    local_ids: Collection[str],
) -> None:
    """Raise SettingsInvalid unless every id stands for one model, and fallbacks name models."""
    owners = dict.fromkeys(local_ids, "this server")
    for provider in providers:
        for model in dict.fromkeys(provider.models):
            if model in owners:
                raise SettingsInvalid(
                    f"providers.{provider.name}.models: {model} is a model of {owners[model]} already;"
                    " an id stands for one model"
                )
            owners[model] = provider.name
    takers = [provider.name for provider in providers if not provider.models]
    if len(takers) > 1:
        raise SettingsInvalid(
            f"providers: {' and '.join(takers)} list no models, and each would take every id without"
            " a slash; list the models of all but one"
        )
    for model, others in fallbacks.items():
        for name in (model, *others):
            if name not in owners and ("/" in name or not takers):
                raise SettingsInvalid(
                    f"fallbacks.{model}: there is no model {name}; there is {', '.join(owners)}"
                )
        if model in others:
            raise SettingsInvalid(f"fallbacks.{model}: a model is no fallback of itself")
