"""Completes the framework's document with what `Operation`s tell. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter

from liveedge.api import answers
from liveedge.api.code_places import codes_at
from liveedge.api.errors import NEEDS_RETRY_AFTER, RULES
from liveedge.api.operation import EVENTS, JSON, Operation, header

Operations = Mapping[tuple[str, str], Operation]

SCHEMA_PATH = "#/components/schemas/{model}"
# Of every route: what is no HTTP, comes too slowly or crashes, and a server that stops or has no
# free connection.
ALWAYS = (400, 408, 500, 503)
OF_EVERY_KEY = (401, 403, 429)  # no good key, one that does not open this, one that asked too often
FROM_PAGES = 403  # of an open server, to what pages of other sites send
# Where chat may answer flat: connections and pages, a server that is away, limits of other services.
FLAT_EVERYWHERE = (400, 401, FROM_PAGES, 408, 429, 501, 503)
RATE_HEADERS = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")
HARMLESS = ("get", "head", "options")
ERRORS = (
    answers.ChatError,
    answers.FlatError,
    answers.ValidationError,
    answers.RegionError,
    answers.BrokenStream,
)
REQUEST_ID = header(
    "X-Request-Id",
    "Comes back with the answer and stands in the log; made where it is missing or over 128 characters",
    type="string",
)
REGION = header("X-Overshoot-Region", "The region that is to answer", type="string")
_BINARY: Mapping[str, Any] = {"type": "string", "format": "binary"}
_TEXT: Mapping[str, Any] = {"type": "string"}


def complete(document: dict[str, Any], operations: Operations, *, prefix: str) -> dict[str, Any]:
    """The document, with everything about `operations`, whose paths are shown under `prefix`."""
    schemas = _Schemas(operations)
    components = document.setdefault("components", {})
    # Ours alone: the framework's own errors never reach a client.
    components["schemas"] = schemas.definitions
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer"},
        "publish_token": {
            "type": "http",
            "scheme": "bearer",
            "description": "`publish.token` of the stream",
        },
    }
    document["security"] = [{"key": []}]
    for (path, method), operation in operations.items():
        shown = document["paths"][prefix + path][method]
        shown["operationId"] = operation_id(path, method)
        shown["parameters"] = [*shown.get("parameters", ()), *_parameters(operation)]
        shown["responses"] = _responses(operation, method, schemas)
        for status, response in shown["responses"].items():
            if codes := codes_at(int(status), path, operation):
                response["description"] += f" ({', '.join(f'`{code}`' for code in codes)})"
        shown |= _security(operation)
        if body := _body(operation, schemas):
            shown["requestBody"] = body
    return document


def operation_id(path: str, method: str) -> str:
    """By which clients are generated, and by which links name an operation."""
    words = path.replace("{", "").replace("}", "").replace(".", "_").replace("-", "_").split("/")
    return "_".join([method, *filter(None, words)])


class _Schemas:
    """Every body, answer and error, each once."""

    def __init__(self, operations: Operations) -> None:
        bodies = {one.body for one in operations.values() if one.body}
        told = {one for each in operations.values() for one in (each.answer, each.event) if one}
        told |= set(ERRORS)
        inputs = [(one, "validation", TypeAdapter(one)) for one in sorted(bodies, key=_name)]
        inputs += [(one, "serialization", TypeAdapter(one)) for one in sorted(told, key=_name)]
        references, whole = TypeAdapter.json_schemas(inputs, ref_template=SCHEMA_PATH)  # type: ignore[arg-type]
        self._references = {model: dict(found) for (model, _), found in references.items()}
        self.definitions: dict[str, Any] = whole["$defs"]
        for model, example in answers.EXAMPLES.items():
            if model in self._references:
                self.definitions[_name(model)]["examples"] = [example]

    def of(self, model: type[Any] | None) -> dict[str, Any]:
        return {} if model is None else dict(self._references[model])


def _name(model: type[Any]) -> str:
    return model.__name__


def _parameters(operation: Operation) -> Iterator[Mapping[str, Any]]:
    yield from operation.parameters
    yield REQUEST_ID
    if operation.is_regional:
        yield REGION


def _takes_key(operation: Operation) -> bool:
    return operation.key == "key" and not operation.is_public


def _is_counted(operation: Operation) -> bool:
    """Among the requests of its key. What is about the server as a whole is not."""
    return _takes_key(operation) and operation.is_regional


def _security(operation: Operation) -> dict[str, Any]:
    if operation.is_public:
        return {"security": []}
    return {} if operation.key == "key" else {"security": [{operation.key: []}]}


def _body(operation: Operation, schemas: _Schemas) -> dict[str, Any] | None:
    required = not operation.is_body_optional
    if operation.body is not None:
        schema = schemas.of(operation.body)
        if operation.is_body_optional:
            schema = {"anyOf": [schema, {"type": "null"}]}
        content: dict[str, Any] = {JSON: {"schema": schema}}
        if operation.example is not None:
            content[JSON]["example"] = operation.example
        return {"required": required, "content": content}
    if not operation.body_kinds:
        return None
    content = {kind: {"schema": _raw(kind)} for kind in operation.body_kinds}
    return {"required": required, "content": content}


def _raw(kind: str) -> Mapping[str, Any]:
    """The schema of what is no JSON."""
    if "sdp" in kind or kind.startswith("text/"):
        return _TEXT
    return _BINARY if kind.partition("/")[0] in ("image", "multipart") else {}


def _responses(operation: Operation, method: str, schemas: _Schemas) -> dict[str, Any]:
    shown = {
        str(status): _success(status, operation, schemas)
        for status in (operation.status, *operation.also)
    }
    for status in operation.empty:
        shown[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {},
            "headers": _common_headers(operation, required=True),
        }
    errors = {*operation.errors, *ALWAYS}
    if _takes_key(operation):
        errors.update(OF_EVERY_KEY)
    if method not in HARMLESS:
        errors.add(FROM_PAGES)
    if operation.is_regional:
        errors.add(409)
    for status in sorted(errors):
        shown[str(status)] = _failure(status, operation, schemas)
    return shown


def _success(status: int, operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for kind in operation.kinds:
        content[kind] = {"schema": _shown(kind, operation, schemas)}
    names = dict.fromkeys(operation.headers, "integer")
    names |= dict.fromkeys(operation.text_headers, "string")
    shown = {"description": HTTPStatus(status).phrase, "content": content}
    shown["headers"] = {
        **{name: {"schema": {"type": kind}} for name, kind in names.items()},
        **(_rate_headers() if _is_counted(operation) else {}),
        **_common_headers(operation, required=True),
    }
    if operation.links:
        shown["links"] = operation.links
    return shown


def _shown(kind: str, operation: Operation, schemas: _Schemas) -> Mapping[str, Any]:
    if kind == JSON:
        return schemas.of(operation.answer)
    if kind != EVENTS:
        return _raw(kind)
    events = [schemas.of(operation.event), schemas.of(answers.BrokenStream)]
    data: dict[str, Any] = {
        "type": "string",
        "contentMediaType": JSON,
        "contentSchema": {"anyOf": events},
    }
    if operation.end_mark is not None:
        data = {"anyOf": [data, {"const": operation.end_mark}]}
    return {"type": "object", "required": ["data"], "properties": {"data": data}}


def _failure(status: int, operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    found = [schemas.of(model) for model in _shapes(status, operation)]
    headers = _common_headers(operation, required=False)
    if status == 429 and _is_counted(operation):
        headers |= _rate_headers()
    if status in RETRIED:
        headers["Retry-After"] = {
            "description": "Seconds",
            "schema": {"type": "integer", "minimum": 1},
        }
    if 400 <= status < 500:
        headers["x-should-retry"] = {
            "description": "Where a retry cannot help",
            "schema": {"enum": ["false"]},
        }
    return {
        "description": HTTPStatus(status).phrase,
        "headers": headers,
        "content": {JSON: {"schema": found[0] if len(found) == 1 else {"anyOf": found}}},
    }


def _shapes(status: int, operation: Operation) -> Iterator[type[Any]]:
    """In which shapes this status may come. The connection itself knows no face."""
    if operation.face == "chat":
        if status == 422:
            yield answers.ValidationError
        elif status not in (401, 408, 503):
            yield answers.ChatError
    if operation.face == "flat" or status in FLAT_EVERYWHERE:
        yield answers.FlatError
    if status == 409 and operation.is_regional:
        yield answers.RegionError


def _common_headers(operation: Operation, *, required: bool) -> dict[str, Any]:
    names = ["X-Request-Id", *(["X-Overshoot-Region"] if operation.is_regional else [])]
    # A connection that is refused before its request was read knows neither.
    return {name: {"required": required, "schema": {"type": "string"}} for name in names}


def _rate_headers() -> dict[str, Any]:
    """Of a key with a rate."""
    return {name: {"schema": {"type": "string"}} for name in RATE_HEADERS}


def _retried() -> frozenset[int]:
    return frozenset(RULES[cls].status for cls in NEEDS_RETRY_AFTER)


RETRIED = _retried()
