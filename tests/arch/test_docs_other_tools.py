"""docs/other-tools.md and bench/peers/README.md: what their commands name is there, without the tools."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from liveedge.bench.scenario import load_scenario
from liveedge.cli import build_parser
from liveedge.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))

from peers import pictures, serve  # noqa: E402
from peers.exam import draw  # noqa: E402
from peers.sides import MODES  # noqa: E402

pytestmark = pytest.mark.arch
TOOLS = (ROOT / "docs" / "other-tools.md").read_text()
PEERS = (ROOT / "bench" / "peers" / "README.md").read_text()


def arguments(text: str, program: str) -> list[list[str]]:
    """What follows `program` on every line of the code blocks; continued lines are one."""
    blocks = "\n".join(re.findall(r"```\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    lines = re.findall(rf"{re.escape(program)}\b(.*)", blocks)
    return [shlex.split(line, comments=True) for line in lines]


def test_pictures_are_written_as_both_documents_say():
    lines = arguments(TOOLS, "-m peers.pictures")
    assert len(lines) == 3
    assert [pictures.parse(line).frames for line in lines] == [1, 4, 1]


def test_the_files_that_tools_are_given_are_written(tmp_path: Path):
    pictures.write(draw(1, n_frames=1), tmp_path, model="a/b")
    named = set(re.findall(r"build/frames/(\S+\.jsonl)", TOOLS))
    assert named == {"requests.jsonl", "questions.jsonl"}
    assert named <= {path.name for path in tmp_path.iterdir()}


def test_the_server_is_started_and_named_as_it_can_be():
    (line,) = arguments(TOOLS, "-m liveedge")
    assert build_parser({}).parse_args(line).port == "8000"
    assert set(re.findall(r"(?:--model |model=)([\w/-]+)", TOOLS)) == {Settings().model}
    assert (ROOT / "src/liveedge/assets/workcell-tiny/tokenizer.json").exists()
    build_parser({}).parse_args(["serve", "--metrics-public"])


def test_every_side_is_served_as_the_readme_says():
    sides = [serve.parse(line).side for line in arguments(PEERS, "-m peers.serve")]
    assert sorted(sides) == sorted(MODES)


def test_the_scenario_for_peers_takes_the_keys_that_the_readme_names():
    (line,) = arguments(PEERS, "liveedge bench run")
    options = build_parser({}).parse_args(["bench", "run", *line])
    scenario = load_scenario(
        ROOT / options.scenario,
        {"sources.width": 320, "sources.height": 192, "target.video": "avi"},
    )
    assert (scenario.target.delivery, scenario.media.clip) == ("data", "images")
    assert scenario.questions.temperature == 0
