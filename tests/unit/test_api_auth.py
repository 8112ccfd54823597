"""Keys: who is who, without telling more than that."""

import pytest

from liveedge.api.auth import OPEN, Keys
from liveedge.core.errors import Unauthorized


def test_without_keys_everybody_is_the_same_tenant():
    keys = Keys([])
    assert keys.caller(None) == keys.caller("Bearer whatever") == OPEN


def test_each_key_is_its_own_tenant_and_does_not_appear_in_its_name():
    keys = Keys(["alpha", "beta", "any opaque: string"])
    names = {keys.caller(f"Bearer {key}") for key in ("alpha", "beta", "any opaque: string")}
    assert len(names) == 3
    assert not any("alpha" in repr(name) for name in names)
    assert keys.caller("bearer  alpha ") == keys.caller("Bearer alpha")


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic alpha", "alpha", "Bearer alph", "Bearer Alpha"]
)
def test_anything_else_is_refused_without_repeating_it(header):
    with pytest.raises(Unauthorized) as caught:
        Keys(["alpha"]).caller(header)
    assert "alph" not in caught.value.message.lower()
