"""What does not fit is refused with what would: following any suggestion indeed fits."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given, settings as budget_of, strategies as st

from liveedge.core.errors import SettingsInvalid
from liveedge.engine.memory.fitting import fitting_plan
from liveedge.engine.memory.plan import ModelFacts
from liveedge.resources import engine_settings, memory_asked
from liveedge.settings import Settings, load
from tests.unit.test_engine_memory_plan import FACTS

GIB = 1 << 30
CEILING = 64 * GIB
# Two billion weights with the KV of Qwen3-VL-2B.
LARGE = replace(
    FACTS,
    n_values=2_100_000_000,
    largest_values=300_000_000,
    tokenizer_bytes=11_000_000,
    shape=replace(FACTS.shape, n_layers=28, n_kv_heads=8, head_dim=128, max_position=262_144),
)


def refused(flags: dict[str, object], facts: ModelFacts) -> str | None:
    """What is said where these flags do not fit; None where they do."""
    settings = load(flags=flags).settings
    asked = memory_asked(settings, engine_settings(settings, "m"), ceiling_bytes=CEILING)
    try:
        plan = fitting_plan(asked, facts)
    except SettingsInvalid as error:
        return error.message
    assert plan.host_bytes <= asked.budget.n_bytes
    return None


def suggestions(message: str) -> list[dict[str, object]]:
    """The flags of every suggestion in a message."""
    _, _, said = message.partition("What would fit: ")
    found = []
    for text in said.split(" or ") if said else []:
        flags = re.findall(r"--([a-z-]+)(?: ([0-9.A-Za-z]+))?", text)
        found.append(
            {
                name.removeprefix("no-").replace("-", "_"): (
                    False if name.startswith("no-") else value
                )
                for name, value in flags
            }
        )
    return found


def test_the_message_names_the_need_the_budget_and_the_largest_line():
    message = refused({"memory": "20GiB", "max_model_len": "4096"}, LARGE)
    assert message is not None
    assert re.match(
        r"the memory plan needs [\d.]+ GiB, --memory is 20 GiB; the largest line is KV slots with"
        r" 11\.4 GiB\. What would fit: --max-model-len \d+ or --max-sessions \d+",
        message,
    )


@budget_of(deadline=None, max_examples=60)
@given(
    gib=st.floats(0.3, 40),
    sessions=st.integers(1, 64),
    windows=st.integers(0, 32),
    length=st.integers(512, 8192),
    cache_mb=st.integers(32, 4096),
    history_mb=st.integers(16, 2048),
    more_mb=st.none() | st.integers(0, 20_000),
    standby=st.booleans(),
    facts=st.sampled_from([FACTS, LARGE]),
)
def test_following_any_suggestion_fits(
    facts: ModelFacts, gib: float, more_mb: int | None, history_mb: int, **values: object
):
    one_stream_mb = Settings().hot_mb + history_mb
    flags: dict[str, object] = {
        "memory": f"{gib:.3f}GiB",
        "max_sessions": values["sessions"],
        "max_windows": values["windows"],
        "max_model_len": values["length"],
        "encoder_cache_mb": values["cache_mb"],
        "history_mb": history_mb,
        "streams_mb": None if more_mb is None else one_stream_mb + more_mb,
        "standby": values["standby"],
    }
    message = refused(flags, facts)
    if message is None:
        return
    found = suggestions(message)
    assert found or "The least that this model needs is" in message
    for suggestion in found:
        assert refused({**flags, **suggestion}, facts) is None, suggestion


def test_a_suggestion_is_not_smaller_than_it_must_be():
    flags: dict[str, object] = {"memory": "20GiB", "max_model_len": 4096}
    message = refused(flags, LARGE)
    assert message is not None
    by_name = {name: value for one in suggestions(message) for name, value in one.items()}
    sessions = int(str(by_name["max_sessions"]))
    length = int(str(by_name["max_model_len"]))
    assert refused({**flags, "max_sessions": sessions + 1}, LARGE) is not None
    assert refused({**flags, "max_model_len": length + 256}, LARGE) is not None


def test_a_larger_budget_is_suggested_only_where_the_machine_has_it():
    message = refused({"memory": "1GiB"}, FACTS)
    assert message is not None
    assert "--memory " in message.partition("What would fit")[2]
    large = replace(LARGE, n_values=40_000_000_000)
    message = refused({"memory": "40GiB"}, large)
    assert message is not None
    assert "The least that this model needs is" in message


def test_settings_that_cannot_work_at_all_are_told_as_before():
    message = refused({"memory": "60GiB", "max_model_len": 9000}, FACTS)
    assert message == "max_model_len is 9000, the model takes 2 to 8192 tokens"
