"""A report as data: what is said first, then sections of texts, charts and tables.

`html` and `markdown` write one; whoever fills it knows neither. All texts are plain: what a server said
is as safe here as anything else, because the writers escape everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from liveedge.bench.report.chart import Chart

Tone: TypeAlias = Literal["plain", "good", "bad", "doubt", "muted"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A text that is marked."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under a head; numbers stand at the right, the first `n_names` columns at the left."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    n_names: int = 1
    note: str = ""
    columns: Literal[1, 2, 3] = 3  # of the page, where it has three


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A text whose line breaks count: a command, a file."""

    caption: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part with its heading. Charts come first, then tables, then listings."""

    name: str  # of its anchor: a-z and -
    title: str
    texts: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    listings: Sequence[Listing] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One of the few numbers that matter."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer, first of all."""

    word: str
    tone: Tone
    reasons: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The whole report."""

    kind: str  # "Benchmark": above the title
    title: str
    subtitle: Sequence[str] = ()
    verdict: Verdict
    facts: Sequence[Fact] = ()
    warnings: Sequence[str] = ()
    key_table: Table | None = None
    sections: Sequence[Section] = field(default_factory=tuple)
    foot: str = ""
