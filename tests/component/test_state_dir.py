"""The folder that survives a restart: who may use it, who may read it, what it holds."""

import errno
import os
import signal
import stat
import subprocess
import sys

import pytest

from liveedge.core.errors import SettingsInvalid, StreamLimitReached
from liveedge.service.state_dir import (
    KEPT_FREE_BYTES,
    LOST_KEPT_MS,
    SECRET_BYTES,
    StateDir,
    holds_frames,
    remove,
    way_out,
)

MIB = 1 << 20
ID = "0b1f6c1e-6f0e-4e0e-9d3c-3f1d5f8f2a11"
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


def a_pipe(path):
    os.mkfifo(path)


def a_folder(path):
    path.mkdir()


def a_dead_link(path):
    path.symlink_to("/nonexistent/place")


@pytest.mark.parametrize("name", ["lock", "publish-tokens.key"])
@pytest.mark.parametrize("make", [a_pipe, a_folder, a_dead_link])
def test_what_stands_in_the_place_of_a_file_is_named_with_the_way_out(path, name, make):
    path.mkdir(parents=True)
    make(path / name)
    with pytest.raises(
        SettingsInvalid, match=rf"cannot be used: .*{path}/{name}\); move away what"
    ):
        StateDir(path)


def test_a_file_in_the_place_of_the_streams_is_named(path):
    path.mkdir(parents=True)
    (path / "streams").write_text("x")
    with pytest.raises(SettingsInvalid, match=rf"File exists \({path}/streams\); move away what"):
        StateDir(path)


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "free disk space"),
        (errno.EROFS, "may write to"),
        (errno.EACCES, "may write to"),
        (errno.ENOTDIR, "move away what is there"),
    ],
)
def test_the_way_out_is_that_of_the_error(number, told):
    assert told in way_out(OSError(number, os.strerror(number)))


def test_a_folder_that_was_moved_away_refuses_new_streams_by_its_name(path, tmp_path):
    folder = StateDir(path)
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(StreamLimitReached, match=rf"{path} \(state_dir\) is not usable any more"):
        folder.require_room(MIB)
    folder.close()


def test_a_deleted_stream_is_noted_once_and_its_frames_can_go_first(path):
    folder = StateDir(path)
    frames = folder.frames_of(ID)
    frames.mkdir()
    (frames / "index").write_text("x")
    assert not folder.has_ended(ID)
    assert folder.note_ended(ID)
    assert folder.note_ended(ID)
    assert not frames.exists()
    folder.empty_ended(ID)
    assert folder.has_ended(ID)
    folder.forget_ended(ID)
    assert not folder.has_ended(ID)
    folder.empty_ended(ID)  # again does nothing
    assert folder.note_ended(ID)  # one whose frames were in memory
    folder.close()


def test_a_deletion_that_cannot_be_noted_says_so(path, tmp_path):
    folder = StateDir(path)
    path.rename(tmp_path / "elsewhere")
    assert not folder.note_ended(ID)
    folder.close()


def test_frames_of_unknown_streams_are_kept_for_a_day(path):
    folder = StateDir(path)
    frames = folder.frames_of(ID)
    frames.mkdir()
    assert not holds_frames(frames)
    (frames / "index").write_text("x")
    assert holds_frames(frames)
    place = folder.set_aside([frames], now_ms=1_000)
    assert (place / ID / "index").exists()
    assert folder.overdue(now_ms=LOST_KEPT_MS) == []
    assert folder.overdue(now_ms=LOST_KEPT_MS + 1_000) == [place]
    folder.close()


def test_what_was_set_aside_for_a_known_stream_is_no_orphan(path):
    folder = StateDir(path)
    for suffix in ("", ".unreadable", ".ended"):
        (path / "streams" / f"{ID}{suffix}").mkdir()
    assert folder.orphans({ID}) == []
    assert len(folder.orphans(())) == 3
    folder.close()


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
