"""Every scenario in examples/bench can be run, and says how."""

from pathlib import Path

import pytest

from liveedge.bench.scenario import load_scenario, scenario_of
from liveedge.bench.sources.rotation import Rotation

EXAMPLES = sorted((Path(__file__).parents[2] / "examples/bench").glob("*.toml"))


def test_there_are_scenarios_for_now_for_warm_and_cold_clips_for_a_mix_and_for_peers():
    names = {path.stem for path in EXAMPLES}
    assert names >= {"single", "clips_warm", "clips_cold", "mixed", "peer", "envelope"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_asks_what_can_be_answered_and_says_its_command(path):
    scenario = load_scenario(path)
    turns = [Rotation(scenario).at(index) for index in range(200)]
    asked = {kind for share in scenario.shares for kind in share.kinds}
    assert {turn.question for turn in turns} == asked
    assert {turn.source for turn in turns} == set(range(scenario.sources.count))
    assert f"examples/bench/{path.name}" in path.read_text()
    assert scenario_of(scenario.as_json()) == scenario  # frozen into a result, and read back
