"""Prometheus' text format: metrics as values, and as text.

Labels are closed sets, so that the number of series is constant.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from liveedge.core.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "liveedge_"
Kind: TypeAlias = Literal["gauge", "counter", "histogram"]
Labels: TypeAlias = tuple[tuple[str, str], ...]
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Sample:
    """One value; its labels in order. Those of a histogram are told apart by what follows the name."""

    value: float
    labels: Labels = ()
    suffix: Literal["", "_bucket", "_sum", "_count"] = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """One name with all its samples."""

    name: str  # without the prefix
    kind: Kind
    help: str
    samples: tuple[Sample, ...]

    def __post_init__(self) -> None:
        assert _NAME.fullmatch(self.name), self.name
        assert (self.kind == "counter") == self.name.endswith("_total"), self.name
        assert all(bool(s.suffix) == (self.kind == "histogram") for s in self.samples), self.name


def one(name: str, kind: Kind, help_: str, value: float) -> Metric:
    """A metric without labels."""
    return Metric(name, kind, help_, (Sample(float(value)),))


def many(name: str, kind: Kind, help_: str, label: str, values: Mapping[str, float]) -> Metric:
    """A metric with one label."""
    samples = tuple(Sample(float(value), ((label, key),)) for key, value in values.items())
    return Metric(name, kind, help_, samples)


def histogram(name: str, help_: str, found: Histogram | Mapping[Labels, Histogram]) -> Metric:
    """A histogram, or one per set of labels."""
    by_labels = {(): found} if isinstance(found, Histogram) else found
    samples = (s for labels, each in by_labels.items() for s in _samples(each, labels))
    return Metric(name, "histogram", help_, tuple(samples))


def _samples(found: Histogram, labels: Labels) -> Iterator[Sample]:
    for bound, count in found.cumulative():
        shown = "+Inf" if math.isinf(bound) else _number(float(bound))
        yield Sample(float(count), (*labels, ("le", shown)), "_bucket")
    yield Sample(found.sum, labels, "_sum")
    yield Sample(float(found.count), labels, "_count")


def exposition(metrics: Iterable[Metric]) -> str:
    """The text format. Names are unique."""
    lines: list[str] = []
    for metric in metrics:
        name = PREFIX + metric.name
        lines.append(f"# HELP {name} {_escaped(metric.help)}")
        lines.append(f"# TYPE {name} {metric.kind}")
        lines += [f"{name}{s.suffix}{_labels(s.labels)} {_number(s.value)}" for s in metric.samples]
    return "\n".join([*lines, ""])


@lru_cache(maxsize=4096)  # the same thousand at every scrape, and half the work of one
def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    inner = ",".join(f'{key}="{_quoted(value)}"' for key, value in labels)
    return f"{{{inner}}}"


def _quoted(value: str) -> str:
    return _escaped(value).replace('"', '\\"')


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
