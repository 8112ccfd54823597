"""`/docs`: the API document as one HTML page that needs nothing from anywhere, not even a script.

Pure. Everything from the document is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    "x-content-type-options": "nosniff",
}
BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "minItems": "items ≥",
    "maxItems": "items ≤",
    "minLength": "characters ≥",
    "maxLength": "characters ≤",
    "default": "default",
}
_CODE = re.compile(r"`+([^`]+)`+")
STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h2{margin-top:2.5rem;border-top:1px solid #8886;padding-top:1rem;font-size:1.1rem}
code,.method{font-family:ui-monospace,monospace}
.method{font-weight:700;margin-right:.5rem}
table{border-collapse:collapse;margin:.5rem 0 1rem}
th,td{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0;border-bottom:1px solid #8884}
"""


def api_page(document: Mapping[str, Any]) -> str:
    """The page of an OpenAPI document."""
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f'<link rel="icon" href="data:,"><title>{title}</title><style>{STYLE}</style></head><body>',
        f"<h1>{title}</h1>",
        "<p>Every path also answers under <code>/v1</code> and without a prefix.</p>",
        "<p>Where the server has keys: <code>Authorization: Bearer KEY</code>.</p>",
        '<p>For programs: <a href="openapi.json">openapi.json</a>.</p>',
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts += _operation(path, method, operation)
    for name, schema in document["components"]["schemas"].items():
        parts += [f'<h2 id="{escape(name)}">{escape(name)}</h2>', *_schema(schema)]
    return "".join([*parts, "</body></html>"])


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f'<h2><span class="method">{method.upper()}</span><code>{escape(path)}</code></h2>'
    key = "No key needed." if operation.get("security") == [] else ""
    yield f"<p>{_text(operation.get('description', ''))} {key}</p>"
    if parameters := operation.get("parameters"):
        rows = [
            (
                f"<code>{escape(one['name'])}</code>",
                one["in"],
                _type(one["schema"]),
                _text(one.get("description", "")),
            )
            for one in parameters
        ]
        yield _table(("parameter", "in", "type", ""), rows)
    if body := operation.get("requestBody"):
        yield f"<p>Body: {_contents(body['content'])}</p>"
    answers = [
        (status, f"{_text(one['description'])}: {_contents(one['content'])}", _names(one))
        for status, one in operation["responses"].items()
    ]
    yield _table(("status", "answer", "headers"), answers)


def _text(description: str) -> str:
    """With what stands between backticks as code."""
    return _CODE.sub(r"<code>\1</code>", escape(description))


def _names(response: Mapping[str, Any]) -> str:
    return escape(", ".join(response.get("headers", {})))


def _contents(content: Mapping[str, Any]) -> str:
    shown = []
    for kind, one in content.items():
        schema = one["schema"]
        of = f" of {_type(schema)}" if "$ref" in schema else ""
        shown.append(escape(kind) + of)
    return ", ".join(shown)


def _schema(schema: Mapping[str, Any]) -> Iterator[str]:
    if text := schema.get("description"):
        yield f"<p>{_text(text)}</p>"
    required = schema.get("required", ())
    rows = [
        (
            f"<code>{escape(name)}</code>",
            _type(one),
            "required" if name in required else "",
        )
        for name, one in schema.get("properties", {}).items()
    ]
    if rows:
        yield _table(("field", "type", ""), rows)


def _type(schema: Mapping[str, Any]) -> str:
    """A type in words; None is left out, because an explicit null counts as absent."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[1])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        choices = [one for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(map(_type, choices))
    if "enum" in schema:
        return escape(" | ".join(map(str, schema["enum"])))
    if "const" in schema:
        return escape(str(schema["const"]))
    if schema.get("type") == "array":
        text = f"list of {_type(schema.get('items', {}))}"
    elif schema.get("properties"):
        text = f"{{{escape(', '.join(schema['properties']))}}}"
    else:
        text = escape(str(schema.get("type", "any")))
    bounds = [
        f"{sign} {schema[key]}" for key, sign in BOUNDS.items() if schema.get(key) is not None
    ]
    return f"{text} ({escape(', '.join(bounds))})" if bounds else text


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML already."""
    head = "".join(f"<th>{one}</th>" for one in heads)
    body = "".join("<tr>" + "".join(f"<td>{one}</td>" for one in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
