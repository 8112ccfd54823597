"""The folder that survives a restart: who may use it, who may read it, what it holds."""

import os
import signal
import stat
import subprocess
import sys

import pytest

from liveedge.core.errors import SettingsInvalid, StreamLimitReached
from liveedge.service.state_dir import KEPT_FREE_BYTES, SECRET_BYTES, StateDir, remove

MIB = 1 << 20
HOLDER = """
import sys
from pathlib import Path
from liveedge.service.state_dir import StateDir
folder = StateDir(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "state"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_missing_folder_is_made_for_its_user_alone(path):
    StateDir(path).close()
    assert mode(path) == 0o700
    assert mode(path / "streams") == 0o700
    assert {mode(file) for file in path.iterdir() if file.is_file()} == {0o600}


def test_a_folder_that_others_may_read_shows_them_nothing(path):
    path.mkdir(parents=True, mode=0o755)
    (path / "streams").mkdir(mode=0o755)
    folder = StateDir(path)
    assert mode(path / "streams") == 0o700
    assert mode(path / "publish-tokens.key") == 0o600
    folder.close()


def test_the_secret_stays_the_same(path):
    first = StateDir(path)
    first.close()
    second = StateDir(path)
    assert second.secret == first.secret
    assert len(first.secret) == SECRET_BYTES
    second.close()


def test_two_folders_have_two_secrets(tmp_path):
    one, two = StateDir(tmp_path / "one"), StateDir(tmp_path / "two")
    assert one.secret != two.secret
    one.close()
    two.close()


@pytest.mark.parametrize("content", [b"", b"short", bytes(33)])
def test_a_damaged_secret_is_replaced(path, content, caplog):
    path.mkdir(parents=True)
    (path / "publish-tokens.key").write_bytes(content)
    folder = StateDir(path)
    assert len(folder.secret) == SECRET_BYTES
    assert folder.secret != content
    assert "damaged" in caplog.text
    folder.close()


def test_a_second_server_is_refused_with_the_first_ones_process(path):
    folder = StateDir(path)
    with pytest.raises(SettingsInvalid, match=rf"{path}.*process {os.getpid()}.*folder of its own"):
        StateDir(path)
    folder.close()
    StateDir(path).close()


def test_a_killed_process_leaves_the_folder_free(path):
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(SettingsInvalid, match=f"process {holder.pid}"):
            StateDir(path)
        holder.send_signal(signal.SIGKILL)
    StateDir(path).close()


def test_the_lock_does_not_go_to_child_processes(path):
    folder = StateDir(path)
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        folder.close()
        StateDir(path).close()
        child.kill()


def test_a_folder_that_cannot_be_made_is_told_with_its_reason(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsInvalid, match=r"state_dir .*file/state cannot be used: Not a dir"):
        StateDir(tmp_path / "file" / "state")


def test_room_is_refused_with_the_folder_and_what_is_missing(path):
    folder = StateDir(path, free=lambda _folder: 100 * MIB)
    folder.require_room(100 * MIB - KEPT_FREE_BYTES)
    with pytest.raises(StreamLimitReached) as caught:
        folder.require_room(512 * MIB)
    assert str(path) in caught.value.message
    assert "may take 512 MB" in caught.value.message
    assert "100 MB free" in caught.value.message
    assert f"{512 + KEPT_FREE_BYTES // MIB - 100} MB are missing" in caught.value.message
    folder.close()


def test_orphans_are_what_no_stream_is_known_for(path):
    folder = StateDir(path)
    for name in ("known", "left"):
        folder.frames_of(name).mkdir()
    (path / "streams" / "file").write_text("x")
    orphans = folder.orphans({"known", "without a folder"})
    assert [orphan.name for orphan in orphans] == ["file", "left"]
    for orphan in orphans:
        remove(orphan)
    assert folder.orphans({"known"}) == []
    remove(orphans[0])  # again does nothing
    folder.close()


def test_a_link_is_removed_and_not_what_it_leads_to(path, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    folder = StateDir(path)
    folder.frames_of("link").symlink_to(tmp_path / "precious")
    for orphan in folder.orphans(()):
        remove(orphan)
    assert folder.orphans(()) == []
    assert (tmp_path / "precious" / "file").exists()
    folder.close()
