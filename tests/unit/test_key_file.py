"""The file of keys: what is no such file is told, and left as it is."""

import resource
import sqlite3
from contextlib import closing, contextmanager

import pytest

from liveedge.core.errors import SettingsInvalid
from liveedge.service.key_file import APPLICATION_ID, KeyFile


def test_a_missing_file_is_made_only_where_that_is_meant(tmp_path):
    path = tmp_path / "new" / "keys.sqlite"
    with pytest.raises(SettingsInvalid, match="there is no file of keys"):
        KeyFile(path, create=False)
    assert not path.parent.exists()
    with closing(KeyFile(path, create=True)) as file:
        assert file.keys() == ()
    assert KeyFile(path, create=False).keys() == ()


def _text(path):
    path.write_text("these are no keys at all\n" * 100)


def _foreign(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE cats (name TEXT)")


def _newer(path):
    KeyFile(path, create=True).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")


def _torn(path):
    KeyFile(path, create=True).close()
    path.write_bytes(path.read_bytes()[:5000])


def _odd(path):
    KeyFile(path, create=True).close()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "INSERT INTO keys (id, name, owner, digest, scopes, created_at_ms)"
            " VALUES ('1', 'n', 'o', 'd', 'ask,everything', 0)"
        )


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_text, "damaged or something else"),
        (_foreign, "something else, not a file of keys"),
        (_newer, "another version"),
        (_torn, "damaged"),
        (_odd, "'everything' is not a scope"),
        (lambda path: path.mkdir(), "cannot be used: Is a directory"),
        (lambda path: path.symlink_to("nowhere"), "there is no file of keys"),
    ],
)
def test_what_is_no_file_of_keys_is_told_and_stays_as_it_is(tmp_path, spoil, says):
    path = tmp_path / "keys.sqlite"
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(SettingsInvalid, match=says) as caught:
        KeyFile(path, create=True).keys()
    assert str(path) in caught.value.message
    assert (path.read_bytes() if path.is_file() else None) == before


def test_several_may_make_the_same_file(tmp_path):
    files = [KeyFile(tmp_path / "keys.sqlite", create=True) for _ in range(3)]
    assert all(file.keys() == () for file in files)
    with closing(sqlite3.connect(files[0].path)) as database:
        assert database.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_an_unknown_id_cannot_be_revoked(tmp_path):
    with (
        closing(KeyFile(tmp_path / "keys.sqlite", create=True)) as file,
        pytest.raises(SettingsInvalid, match="there is no key '123'"),
    ):
        file.revoke("123", now_ms=0)


@contextmanager
def files_of_at_most(n_bytes):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_takes_no_more_is_told_as_such_and_not_as_damage(tmp_path):
    path = tmp_path / "keys.sqlite"
    with (
        files_of_at_most(4096),
        pytest.raises(SettingsInvalid, match="whether its disk is full"),
    ):
        KeyFile(path, create=True)
    with closing(KeyFile(path, create=True)) as file:
        assert file.keys() == ()


def test_an_id_that_is_no_key_cannot_draw_on_the_terminal(tmp_path):
    with (
        closing(KeyFile(tmp_path / "keys.sqlite", create=True)) as file,
        pytest.raises(SettingsInvalid) as refused,
    ):
        file.revoke("\x1b[31mred\n", now_ms=1)
    assert refused.value.message.isprintable()
