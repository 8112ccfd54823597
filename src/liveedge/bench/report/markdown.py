"""A document as Markdown for a pull request: ASCII, tables, no chart. Sections are folded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from liveedge.bench.report.document import Cell, Document, Section, Table

# What the reports' own texts use beyond ASCII, and how it is typed.
TYPED: Mapping[str, str] = {
    "\u2013": "-",
    "\u2014": "-",
    "\u00d7": "x",
    "\u2717": "x",
    "\u2264": "<=",
    "\u2265": ">=",
    "\u00b1": "+-",
    "\u00b7": "-",
    "\u2026": "...",
    "\u2020": "(!)",
    "\u2192": "->",
    "\u00a0": " ",
    "\u2019": "'",
}
# What Markdown or HTML would act on in the middle of a line. An underscore inside a word is none.
SPECIAL = re.compile(r"[\\`*<|~&]|(?<!\w)_|_(?!\w)|!(?=\[)|\](?=[(\[:])")
AT_START = re.compile(r"^[#>+=-]")  # a heading, a quotation, a list


def markdown(document: Document) -> str:
    """The first screen, then every section that has a table or a listing."""
    return "\n".join(_lines(document)).rstrip() + "\n"


def plain(text: str) -> str:
    """One line of ASCII without what Markdown, HTML or a mention would act on."""
    typed = "".join(TYPED.get(one, one) for one in " ".join(text.split()))
    return SPECIAL.sub(lambda found: "\\" + found[0], _ascii(typed)).replace("@", "(at)")


def line(text: str) -> str:
    """The same where it begins a line."""
    return AT_START.sub(lambda found: "\\" + found[0], plain(text))


def _ascii(text: str) -> str:
    known = text.encode("ascii", "replace").decode()
    return "".join(one if one.isprintable() else "?" for one in known)


def _lines(document: Document) -> Iterator[str]:
    yield f"## {plain(document.kind)}: {plain(document.title)}"
    yield ""
    yield from (f"{line(text)}  " for text in document.subtitle)
    yield ""
    yield f"**{plain(document.verdict.word)}**"
    yield ""
    if document.verdict.reasons:
        yield from (f"- {line(reason)}" for reason in document.verdict.reasons)
        yield ""
    for fact in document.facts:
        detail = f" ({plain(fact.detail)})" if fact.detail else ""
        yield f"- {plain(fact.name)}: **{plain(fact.value)}**{detail}"
    if document.warnings:
        yield ""
        yield "Warnings:"
        yield ""
        yield from (f"- {line(warning)}" for warning in document.warnings)
    if document.key_table:
        yield from _table(document.key_table)
    for section in document.sections:
        if section.tables or section.listings:
            yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    yield ""
    yield f"<details><summary>{plain(section.title)}</summary>"
    for table in section.tables:
        yield from _table(table)
    for listing in section.listings:
        yield ""
        yield f"{line(listing.caption)}:"
        yield ""
        yield from (f"    {_ascii(one)}" for one in listing.text.splitlines())
    yield ""
    yield "</details>"


def _table(table: Table) -> Iterator[str]:
    yield ""
    yield f"**{plain(table.caption)}**"
    yield ""
    yield "| " + " | ".join(map(plain, table.head)) + " |"
    sides = [":--" if number < table.n_names else "--:" for number in range(len(table.head))]
    yield "|" + "|".join(sides) + "|"
    for row in table.rows:
        texts = [cell.text if isinstance(cell, Cell) else cell for cell in row]
        yield "| " + " | ".join(map(plain, texts)) + " |"
    if table.note:
        yield ""
        yield line(table.note)
