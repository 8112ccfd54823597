"""The text of `/metrics`: every statistic once, by the rules of Prometheus' format."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, fields

import pytest

from liveedge.api.exposition import Labels, Metric, Sample, exposition
from liveedge.api.metrics import STATS, engine_metrics, stream_metrics
from liveedge.engine.interface import EngineStats
from liveedge.service.totals import StreamTotals

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')
_ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass
class Family:
    """One metric as a scraper reads it."""

    kind: str
    help: str
    samples: dict[Labels, float] = field(default_factory=dict)


def parse(text: str) -> dict[str, Family]:
    """The text format 0.0.4, strictly: one HELP and one TYPE, then all samples of a name."""
    assert text.endswith("\n")
    found: dict[str, Family] = {}
    help_of: dict[str, str] = {}
    current = ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            current, _, said = line[7:].partition(" ")
            assert current not in help_of, f"{current} is told twice"
            help_of[current] = said
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert name == current
            assert kind in ("counter", "gauge", "histogram")
            found[name] = Family(kind, help_of[name])
        else:
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            suffix = match[1].removeprefix(current)
            is_histogram = found[current].kind == "histogram"
            allowed = ("_bucket", "_sum", "_count") if is_histogram else ("",)
            assert suffix in allowed, f"{match[1]} stands under {current}"
            labels = parse_labels(match[2] or "")
            if suffix:
                labels = (("", suffix), *labels)
            assert labels not in found[current].samples, f"{line} is there twice"
            found[current].samples[labels] = float(match[3])
    return found


def parse_labels(text: str) -> Labels:
    pairs = []
    at = 0
    while at < len(text):
        match = _LABEL.match(text, at)
        assert match is not None, text[at:]
        value = re.sub(r"\\[\\\"n]", lambda found: _ESCAPED[found[0]], match[2])
        pairs.append((match[1], value))
        at = match.end()
    return tuple(pairs)


def test_every_statistic_of_the_engine_is_shown_exactly_once():
    shown = Counter(stat.field for stat in STATS)
    assert shown == Counter(one.name for one in fields(EngineStats))


def test_every_statistic_arrives_with_its_own_value():
    names = [one.name for one in fields(EngineStats)]
    stats = EngineStats(**{name: number for number, name in enumerate(names, start=1)})
    found = parse(exposition(engine_metrics(stats)))
    for stat in STATS:
        labels = () if stat.label is None else (stat.label,)
        family = found[f"liveedge_{stat.name}"]
        assert family.samples[labels] == getattr(stats, stat.field)
        assert family.kind == stat.kind


@pytest.mark.parametrize(
    "name",
    [
        "liveedge_num_requests_running",
        "liveedge_num_requests_waiting",
        "liveedge_prefix_cache_hits_total",
        "liveedge_generation_tokens_total",
        "liveedge_requests_total",
        "liveedge_engine_restarts_total",
        "liveedge_verify_differences_total",
        "liveedge_window_busy_seconds_total",
        "liveedge_shared_frame_bytes",
    ],
)
def test_names_that_dashboards_rely_on_stay(name: str):
    assert name in parse(exposition(engine_metrics(EngineStats())))


def test_names_tell_what_only_rises_and_their_units():
    everything = [*engine_metrics(EngineStats()), *stream_metrics(StreamTotals())]
    for metric in everything:
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert not re.search(r"_(ms|mb|kb|s)(_total)?$", metric.name), "base units only"
        assert metric.help.endswith(".")


def test_odd_values_of_labels_survive():
    odd = 'a "quoted" \\ back\nslash {x="y"} ü'
    text = exposition(
        [Metric("odd", "gauge", "One\nline \\ only.", (Sample(1.5, (("model", odd), ("b", ""))),))]
    )
    found = parse(text)["liveedge_odd"]
    assert found.samples == {(("model", odd), ("b", "")): 1.5}
    assert found.help == "One\\nline \\\\ only."


def test_large_numbers_keep_every_digit():
    metric = Metric("big", "gauge", "Big.", (Sample(float(2**52 + 1)), Sample(0.1, (("a", "b"),))))
    assert f"liveedge_big {2**52 + 1}\n" in exposition([metric])
    assert 'liveedge_big{a="b"} 0.1\n' in exposition([metric])


@pytest.mark.parametrize(("name", "kind"), [("a", "counter"), ("a_total", "gauge"), ("A", "gauge")])
def test_a_wrong_name_is_noticed_where_it_is_made(name: str, kind: str):
    with pytest.raises(AssertionError):
        Metric(name, "counter" if kind == "counter" else "gauge", "Help.", ())
