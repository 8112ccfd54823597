"""docs/providers.md shows configurations: each of them loads, and its table is the settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from liveedge.assembly import find_model, provider_configs
from liveedge.settings import ProviderSettings, load

pytestmark = pytest.mark.arch
TEXT = (Path(__file__).parents[2] / "docs" / "providers.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_its_examples_load(example: str, tmp_path: Path) -> None:
    path = tmp_path / "liveedge.yaml"
    path.write_text(example)
    settings = load(config=path).settings
    _, model_id = find_model(settings)
    keys = {"VLLM_KEY": "k", "HOSTED_KEY": "k", "FAR_KEY": "k"}
    assert provider_configs(settings, model_id, keys)


def test_its_table_names_every_key_of_a_provider() -> None:
    table = TEXT.partition("## Keys of one provider")[2].partition("##")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(
        ProviderSettings.model_fields
    )


def test_it_shows_each_kind_of_server() -> None:
    assert len(EXAMPLES) >= 5
