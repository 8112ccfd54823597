"""Answers held against `/openapi.json`: status, content type, headers and every field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import httpx
import jsonschema_rs

PREFIX = "/v1beta"


class Document:
    """The document of a server."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    @classmethod
    async def of(cls, client: httpx.AsyncClient) -> Document:
        return cls((await client.get("/openapi.json")).json())

    def check(self, path: str, answer: httpx.Response) -> None:
        """`path` is the route's, as the document names it without its prefix."""
        method = answer.request.method.lower()
        operation = self._document["paths"][PREFIX + path][method]
        assert str(answer.status_code) in operation["responses"], (
            f"{method} {path} answers {answer.status_code}, which the document does not name"
        )
        told = operation["responses"][str(answer.status_code)]
        kind = answer.headers["content-type"].partition(";")[0] if answer.content else ""
        if kind:
            assert kind in told["content"], f"{method} {path} answers {kind}"
        for name, header in told["headers"].items():
            assert name in answer.headers or not header.get("required"), f"{path}: no {name}"
        if kind == "application/json":
            self.check_value(told["content"][kind]["schema"], answer.json())
        elif kind == "text/event-stream":
            data_schema = told["content"][kind]["schema"]["properties"]["data"]
            schema = data_schema.get("anyOf", [data_schema])[0]["contentSchema"]
            for event in answer.text.split("\n\n"):
                lines = [line for line in event.split("\n") if line.startswith("data: ")]
                if lines and lines != ["data: [DONE]"]:
                    self.check_value(schema, json.loads(lines[0].removeprefix("data: ")))

    def description(self, path: str, answer: httpx.Response) -> str:
        """What people are told of this answer of the route."""
        operation = self._document["paths"][PREFIX + path][answer.request.method.lower()]
        return str(operation["responses"][str(answer.status_code)]["description"])

    def check_value(self, schema: Mapping[str, Any], value: Any) -> None:
        """Every field has to be known, though a client is told to expect new ones."""
        components = _closed(deepcopy(self._document["components"]))
        whole = {**_closed(deepcopy(schema)), "components": components}
        jsonschema_rs.validate(whole, value)


def _closed(schema: Any) -> Any:
    """With no room for fields that are not named."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    shown = {key: _closed(one) for key, one in schema.items()}
    if isinstance(shown.get("properties"), dict) and "type" in shown:
        shown.setdefault("additionalProperties", False)
    return shown
