"""What a model refuses by the number of messages and parts alone."""

import pytest

from liveedge.core.errors import ContextLengthExceeded
from liveedge.testing.engine import FAKE_MODEL

LIMIT = FAKE_MODEL.max_model_len


@pytest.mark.parametrize(
    ("n_messages", "n_parts", "message"),
    [
        (20_000, 20_000, f"20000 messages have 60000 tokens at least.* takes {LIMIT}"),
        (1, 200_000, f"200000 parts.* takes {LIMIT} tokens"),
        (LIMIT // 3 + 1, 0, "tokens at least"),
        (1, LIMIT + 1, "parts"),
    ],
)
def test_what_cannot_fit_is_refused_with_count_and_limit(
    n_messages: int, n_parts: int, message: str
) -> None:
    with pytest.raises(ContextLengthExceeded, match=message):
        FAKE_MODEL.check_amounts(n_messages=n_messages, n_parts=n_parts)


def test_what_may_fit_is_counted_later() -> None:
    FAKE_MODEL.check_amounts(n_messages=LIMIT // 3, n_parts=LIMIT)
