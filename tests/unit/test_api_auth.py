"""Keys: who is who, without telling more than that."""

import logging

import pytest

from liveedge.api.auth import caller_of
from liveedge.service.audit import MAX_REFUSALS_PER_MINUTE, Audit
from liveedge.service.caller import ALL_SCOPES, Allowance, Caller
from liveedge.service.key_file import KeyFile, StoredKey
from liveedge.service.keys import OPEN, KeyRing, NewKey, Refused, made
from liveedge.testing.clock import FakeClock

DAY_MS = 86_400_000


@pytest.fixture
def clock():
    return FakeClock()


def ring(clock, fixed=(), **options):
    return KeyRing(list(fixed), clock=clock, audit=Audit(clock), **options)


def a_key(file, clock, *, name="camera", owner=None, scopes=ALL_SCOPES, expires_at_ms=None):
    new = NewKey(
        name=name,
        owner=owner,
        scopes=scopes,
        allowance=Allowance(max_streams=3),
        expires_at_ms=expires_at_ms,
    )
    key, row = made(new, now_ms=clock.wall_ms())
    file.add(row)
    return key, row


def test_without_keys_everybody_is_the_same_tenant(clock):
    keys = ring(clock)
    assert caller_of(keys, None) == caller_of(keys, "Bearer whatever") == OPEN
    assert OPEN.scopes == ALL_SCOPES


def test_each_key_is_its_own_tenant_and_does_not_appear_in_its_name(clock):
    keys = ring(clock, ["alpha", "beta", "any opaque: string"])
    names = {caller_of(keys, f"Bearer {key}") for key in ("alpha", "beta", "any opaque: string")}
    assert len(names) == 3
    assert not any("alpha" in repr(name) for name in names)
    assert caller_of(keys, "bearer  alpha ") == caller_of(keys, "Bearer alpha")


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic alpha",
        "alpha",
        "Bearer alph",
        "Bearer Alpha",
        "Bearer \udcff",
    ],
)
def test_anything_else_is_refused_without_repeating_it(clock, header):
    found = caller_of(ring(clock, ["alpha"]), header)
    assert isinstance(found, Refused)
    assert "alph" not in found.message.lower()


def test_a_file_without_keys_is_closed(clock, tmp_path):
    keys = ring(clock, path=tmp_path / "keys.sqlite", create=True)
    assert not keys.is_open
    assert isinstance(caller_of(keys, None), Refused)


def test_a_stored_key_stands_for_its_owner_with_its_scopes_and_limits(clock, tmp_path):
    file = KeyFile(tmp_path / "keys.sqlite", create=True)
    publishing, first = a_key(file, clock, owner="line 4", scopes=frozenset({"streams"}))
    asking, _ = a_key(file, clock, owner="line 4", scopes=frozenset({"ask"}))
    alone, third = a_key(file, clock)
    keys = ring(clock, ["alpha"], path=file.path)
    assert keys.find(publishing) == Caller(
        tenant="owner:line 4",
        key_id=first.id,
        scopes=frozenset({"streams"}),
        allowance=Allowance(max_streams=3),
    )
    assert keys.find(asking).tenant == keys.find(publishing).tenant
    assert keys.find(alone).tenant == f"owner:{third.id}"
    assert isinstance(keys.find("alpha"), Caller)


def test_no_key_can_be_read_from_the_file_and_nobody_else_can_read_it(clock, tmp_path):
    file = KeyFile(tmp_path / "keys.sqlite", create=True)
    key, row = a_key(file, clock)
    assert row.id in key
    for path in tmp_path.iterdir():
        assert key.rpartition("_")[2].encode() not in path.read_bytes()
        assert path.stat().st_mode & 0o077 == 0


def test_only_who_has_the_secret_hears_that_a_key_has_ended(clock, tmp_path):
    file = KeyFile(tmp_path / "keys.sqlite", create=True)
    revoked, row = a_key(file, clock)
    expired, _ = a_key(file, clock, expires_at_ms=clock.wall_ms() + DAY_MS)
    file.revoke(row.id, now_ms=clock.wall_ms())
    clock.move(24 * 3600)
    keys = ring(clock, path=file.path)
    assert keys.find(revoked).reason == "revoked_key"
    assert keys.find(expired).reason == "expired_key"
    for key in (revoked, expired):
        guess = key[:-1] + ("0" if key[-1] != "0" else "1")
        assert keys.find(guess) == keys.find("le_0123456789_" + 64 * "0") == keys.find("x")


async def test_a_running_server_learns_of_keys_within_a_second(clock, tmp_path, caplog):
    caplog.set_level(logging.INFO, "liveedge.audit")
    path = tmp_path / "state" / "keys.sqlite"
    keys = ring(clock, path=path)
    ended: list[StoredKey] = []
    keys.on_end(ended.append)
    assert keys.is_open
    file = KeyFile(path, create=True)
    key, row = a_key(file, clock)
    await keys.refresh()
    assert not keys.is_open
    assert keys.find(key).key_id == row.id
    file.revoke(row.id, now_ms=clock.wall_ms())
    assert ended == []
    await keys.refresh()
    assert [one.id for one in ended] == [row.id]
    assert keys.find(key).reason == "revoked_key"
    assert [text.split()[:2] for text in caplog.messages] == [
        ["key_created", f"key={row.id}"],
        ["key_revoked", f"key={row.id}"],
    ]
    assert key.rpartition("_")[2] not in caplog.text
    file.close()
    await keys.close()


async def test_a_key_that_expires_is_told_to_who_listens_once(clock, tmp_path):
    file = KeyFile(tmp_path / "keys.sqlite", create=True)
    a_key(file, clock, expires_at_ms=clock.wall_ms() + 1000)
    keys = ring(clock, path=file.path)
    ended: list[StoredKey] = []
    keys.on_end(ended.append)
    clock.move(0.9)
    await keys.refresh()
    assert ended == []
    clock.move(0.1)
    await keys.refresh()
    await keys.refresh()
    assert len(ended) == 1
    await keys.close()


async def test_a_file_that_is_lost_or_damaged_lets_nobody_in_and_throws_nobody_out(
    clock, tmp_path, caplog
):
    path = tmp_path / "keys.sqlite"
    file = KeyFile(path, create=True)
    key, _ = a_key(file, clock)
    file.close()
    keys = ring(clock, path=path)
    for spoil in (path.unlink, lambda: path.write_bytes(b"torn" * 1000)):
        spoil()
        await keys.refresh()
        await keys.refresh()
        assert isinstance(keys.find(key), Caller)
        assert isinstance(caller_of(keys, None), Refused)
    assert len([line for line in caplog.messages if "stay as they were" in line]) == 2
    path.unlink()
    file = KeyFile(path, create=True)  # another file under the same name
    other, _ = a_key(file, clock)
    await keys.refresh()
    assert isinstance(keys.find(other), Caller)
    assert isinstance(keys.find(key), Refused)
    file.close()
    await keys.close()


def test_refusals_are_all_counted_and_not_all_written(clock, caplog):
    audit = Audit(clock)
    for _ in range(1000):
        audit.refusal("unknown_key", request_id="r")
    assert audit.refused["unknown_key"] == 1000
    assert len(caplog.messages) == MAX_REFUSALS_PER_MINUTE
    clock.move(60)
    audit.refusal("unknown_key", request_id="r")
    assert (
        caplog.messages[-2]
        == f"refused {1000 - MAX_REFUSALS_PER_MINUTE} more, which were not written"
    )
