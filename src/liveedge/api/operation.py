"""One method of one path, as the document of the API tells it; `docs.py` lists them all.

A router's author writes one `Operation` per route: its body, its answer, and the statuses that are
its own. What every route has (request ids, regions, a failing or stopping server, connections that
are refused) is added by `openapi.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from liveedge.api.errors import Face

JSON = "application/json"
EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path, as its clients see it."""

    status: int = 200
    also: tuple[int, ...] = ()  # other statuses with the same answer
    empty: tuple[int, ...] = ()  # other statuses, without content
    kinds: tuple[str, ...] = (JSON,)  # of the answer
    answer: type[Any] | None = None  # the JSON of it: a model or dataclass
    event: type[Any] | None = None  # the JSON of each event, where the answer is a stream of them
    end_mark: str | None = None  # of that stream: the data of its last event
    errors: tuple[int, ...] = ()
    face: Face = "flat"
    is_public: bool = False  # needs no key
    is_regional: bool = True  # tells its region, and refuses requests for another one
    body: type[BaseModel] | None = None
    is_body_optional: bool = False
    example: Any = None  # of the body
    body_kinds: tuple[str, ...] = ()  # of a body that is no JSON
    parameters: tuple[Mapping[str, Any], ...] = ()
    headers: tuple[str, ...] = ()  # of the answer, with whole numbers
    text_headers: tuple[str, ...] = ()  # of the answer, with texts
    key: str = "key"  # which one it needs: of the server, or the stream's publish token
    links: Mapping[str, Any] = field(default_factory=dict)  # to what can be done with the answer


def query(name: str, description: str, **schema: Any) -> dict[str, Any]:
    """A parameter after the question mark."""
    return {"name": name, "in": "query", "description": description, "schema": schema}


def header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    """A header of the request."""
    return {"name": name, "in": "header", "description": description, "schema": schema}
