"""`/openapi.json`: what the framework finds by itself, and the bodies and keys that it cannot see.

Bodies are parsed by our own code, in the order of checks, so their models are named here.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from liveedge.api.schema import ChatBody, StreamBody

BODIES: dict[str, type[BaseModel]] = {
    "/v1beta/chat/completions": ChatBody,
    "/v1beta/streams": StreamBody,
}


class DocumentedApi(FastAPI):
    """A FastAPI whose document is completed when somebody first asks for it."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = _completed(super().openapi())
        return self.openapi_schema


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    references, definitions = models_json_schema(
        [(model, "validation") for model in BODIES.values()],
        ref_template="#/components/schemas/{model}",
    )
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(definitions["$defs"])
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    for path, model in BODIES.items():
        schema = references[(model, "validation")]
        body = {"content": {"application/json": {"schema": schema}}}
        document["paths"][path]["post"]["requestBody"] = body
    return document
