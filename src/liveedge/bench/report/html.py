"""A document as one HTML file: inline SVG and CSS, no script, no address of anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from liveedge.bench.report.chart import Chart
from liveedge.bench.report.document import (
    Cell,
    Document,
    Fact,
    Listing,
    Section,
    Table,
    Verdict,
)
from liveedge.bench.report.palette import css
from liveedge.bench.report.style import PAGE_CSS
from liveedge.bench.report.svg import chart_svg, clean, hatches, sample

PANEL = (420.0, 270.0)  # px of a chart as drawn; the page scales it a little
WIDE, NARROW = (1140.0, 190.0), (400.0, 220.0)  # of one along time: on wide screens, on narrow ones
MARKS = {"good": "\u2713", "bad": "\u2717", "doubt": "!", "plain": "", "muted": ""}


def html(document: Document) -> str:
    """The whole page."""
    title = clean(f"{document.title} \u2013 {document.kind}")
    body = "".join(_body(document))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{title}</title><style>{css()}{PAGE_CSS}</style></head>\n"
        f"<body>{hatches()}<main>{body}</main></body></html>\n"
    )


def _body(document: Document) -> Iterator[str]:
    subtitle = "".join(f"<p>{clean(line)}</p>" for line in document.subtitle)
    yield (
        f'<header><p class="kind">{clean(document.kind)}</p>'
        f"<h1>{clean(document.title)}</h1>{subtitle}</header>\n"
    )
    yield _verdict(document.verdict)
    if document.facts:
        yield f'<dl class="facts">{"".join(map(_fact, document.facts))}</dl>\n'
    if document.warnings:
        items = "".join(f"<li>{clean(one)}</li>" for one in document.warnings)
        yield (
            '<section class="warnings" aria-label="Warnings"><h2>Warnings</h2>'
            f"<ul>{items}</ul></section>\n"
        )
    if document.key_table:
        yield f'<div class="key-table">{_table(document.key_table, "key-table")}</div>\n'
    links = "".join(
        f'<li><a href="#{section.name}">{clean(section.title)}</a></li>'
        for section in document.sections
    )
    yield f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n'
    for section in document.sections:
        yield _section(section)
    if document.foot:
        yield f"<footer><p>{clean(document.foot)}</p></footer>"


def _verdict(verdict: Verdict) -> str:
    reasons = "".join(f"<li>{clean(reason)}</li>" for reason in verdict.reasons)
    listed = f"<ul>{reasons}</ul>" if reasons else ""
    return (
        f'<section class="verdict {verdict.tone}" aria-label="Verdict">'
        f'<p class="word"><span aria-hidden="true">{MARKS[verdict.tone]}</span>'
        f" {clean(verdict.word)}</p>{listed}</section>\n"
    )


def _fact(fact: Fact) -> str:
    detail = f'<dd class="detail">{clean(fact.detail)}</dd>' if fact.detail else ""
    return f"<div><dt>{clean(fact.name)}</dt><dd>{clean(fact.value)}</dd>{detail}</div>"


def _section(section: Section) -> str:
    texts = "".join(f'<p class="text">{clean(text)}</p>' for text in section.texts)
    charts = "".join(
        _chart(chart, f"{section.name}-{number}") for number, chart in enumerate(section.charts)
    )
    tables = "".join(
        _table(table, f"{section.name}-table-{number}")
        for number, table in enumerate(section.tables)
    )
    listings = "".join(map(_listing, section.listings))
    return (
        f'<section id="{section.name}"><h2>{clean(section.title)}</h2>{texts}'
        f'<div class="grid">{charts}{tables}</div>{listings}</section>\n'
    )


def _chart(chart: Chart, name: str) -> str:
    key = "".join(
        f"<li>{sample(mark)}<span>{clean(mark.label)}</span></li>" for mark in chart.named()
    )
    keyed = f'<ul class="key">{key}</ul>' if key else ""
    notes = " ".join(chart.notes)
    caption = f"<figcaption>{clean(notes)}</figcaption>" if notes else ""
    if chart.wide:
        plot = chart_svg(chart, WIDE, name=f"{name}w", css_class="on-wide") + chart_svg(
            chart, NARROW, name=f"{name}n", css_class="on-narrow"
        )
    else:
        plot = chart_svg(chart, PANEL, name=name)
    wide = ' class="wide"' if chart.wide else ""
    return f"<figure{wide}><h3>{clean(chart.title)}</h3>{keyed}{plot}{caption}</figure>\n"


def _table(table: Table, name: str) -> str:
    head = "".join(
        f'<th scope="col"{_side(number, table)}>{clean(text)}</th>'
        for number, text in enumerate(table.head)
    )
    rows = "".join(f"<tr>{_row(row, table)}</tr>" for row in table.rows)
    note = f'<p class="note">{clean(table.note)}</p>' if table.note else ""
    return (
        f'<div class="table t{table.columns}"><h3 id="{name}">{clean(table.caption)}</h3>'
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{name}">'
        f'<table aria-labelledby="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{note}</div>\n"
    )


def _row(row: Sequence[str | Cell], table: Table) -> str:
    made = []
    for number, cell in enumerate(row):
        text, tone = (cell.text, cell.tone) if isinstance(cell, Cell) else (cell, "plain")
        classes: list[str] = [tone] if tone != "plain" else []
        classes += ["name"] if number < table.n_names else []
        marked = f' class="{" ".join(classes)}"' if classes else ""
        tag, scope = ("th", ' scope="row"') if number == 0 else ("td", "")
        made.append(f"<{tag}{scope}{marked}>{clean(text)}</{tag}>")
    return "".join(made)


def _side(number: int, table: Table) -> str:
    return ' class="name"' if number < table.n_names else ""


def _listing(listing: Listing) -> str:
    return (
        f'<div class="listing"><h3>{clean(listing.caption)}</h3>'
        f'<pre tabindex="0">{clean(listing.text)}</pre></div>\n'
    )
