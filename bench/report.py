"""How every program here ends: a table for people, then one line of JSON with the figures."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns: texts to the left, numbers to the right."""
    cells = [
        [str(column) for column in columns],
        *([_cell(value) for value in row] for row in rows),
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for number, row in enumerate(cells):
        values = rows[number - 1] if number else rows[0] if rows else columns
        line = [
            cell.ljust(width) if isinstance(value, str) else cell.rjust(width)
            for cell, width, value in zip(row, widths, values, strict=True)
        ]
        print("  ".join(line).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
    print(flush=True)


def finish(figures: Mapping[str, Any]) -> None:
    """Print the figures as the last line."""
    print(json.dumps({key: _figure(value) for key, value in figures.items()}), flush=True)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of `values` lie (nearest rank); nan of nothing."""
    if not values:
        return math.nan
    ranked = sorted(values)
    return ranked[max(0, math.ceil(percent / 100 * len(ranked)) - 1)]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least-squares rise of y per unit of x; nan of fewer than two points."""
    if len(points) < 2:
        return math.nan
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def _cell(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def _figure(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 3)
    if isinstance(value, Mapping):
        return {key: _figure(inner) for key, inner in value.items()}
    return value
