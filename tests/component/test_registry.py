"""The registry against a real SQLite: what it keeps, and what it does where the disk does not."""

import asyncio
import logging
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from liveedge.core.clock import SystemClock
from liveedge.core.errors import SettingsInvalid, StreamLimitReached
from liveedge.frames.store import StoreMark
from liveedge.service.registry import ActiveRow, EndedRow, Registry
from liveedge.service.sources import SourceSpec
from liveedge.service.state_dir import StateDir
from liveedge.service.view import GapView, SourceView, StreamView
from tests.serving import until

PASSWORD = "s3cret-of-the-camera"
URL = f"rtsp://admin:{PASSWORD}@10.0.0.7/live"


def uid(name):
    """The id of the stream that a test calls by this name."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def active(name="one", *, expires_at_ms=2_000, **options):
    return ActiveRow(
        id=uid(name),
        tenant="tenant",
        spec=SourceSpec(type="rtsp", url=URL),
        created_at_ms=1_000,
        expires_at_ms=expires_at_ms,
        **options,
    )


def ended(name="one"):
    view = StreamView(
        id=uid(name),
        state="ended",
        source=SourceView(type="rtsp"),
        last_pull=1_900,
        stream_time_ms=800,
        first_frame_at_ms=1_100,
        last_frame_at_ms=1_900,
        last_frame_index=24,
        first_available_frame_at_ms=None,
        first_available_frame_index=None,
        created_at_ms=1_000,
        recent_fps=0.0,
        retained_frame_count=20,
        evicted_frame_count=5,
        expires_at_ms=None,
        ttl_seconds=300,
        ended_at_ms=2_000,
        end_reason="expired",
        audio=False,
        health="ended",
        health_reason="the stream has expired: no keepalive came",
        width=64,
        height=48,
        codec="h264",
        dropped={"undecodable": 2},
        evicted={"retention": 5},
        corrupt_frames=1,
        reconnects=3,
        gaps=(GapView(from_ms=1, to_ms=2),),
        memory_bytes=0,
        reserved_bytes=0,
    )
    return EndedRow(tenant="tenant", expires_at_ms=2_000, view=view)


class Opened:
    """A registry on a folder, closed and opened again at will."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        self.folder = StateDir(self.path)
        self.registry = Registry(self.folder, clock=SystemClock())
        self.registry.start()
        return self.registry

    def __exit__(self, *_):
        self.registry.close()
        self.folder.close()

    def kill(self):
        """The lock goes, and nothing else happens, as with kill -9."""
        self.folder.close()


@pytest.fixture
def opened(tmp_path):
    return Opened(tmp_path / "state")


async def test_rows_come_back_as_they_were_put(opened):
    mark = StoreMark(n_produced=25, first_at_ms=1_100, newest_ms=800, width=64, height=48)
    rows = (active("a", finished="the source has ended"), ended("b"), active("c", mark=mark))
    with opened as registry:
        assert registry.rows == ()
        for row in rows:
            registry.put(row)
        await registry.saved()
    with opened as registry:
        assert sorted(registry.rows, key=lambda row: row.id) == sorted(rows, key=lambda row: row.id)


async def test_the_newest_row_of_a_stream_is_the_one_that_counts(opened):
    with opened as registry:
        for expires_at_ms in range(2_000, 2_050):
            registry.put(active(expires_at_ms=expires_at_ms))
        registry.put(active("gone"))
        registry.forget(uid("gone"))
        registry.forget("never known")
        await registry.saved()
        assert registry.n_waiting == 0
    with opened as registry:
        assert registry.rows == (active(expires_at_ms=2_049),)


async def test_what_was_saved_needs_no_farewell(opened):
    with opened as registry:
        registry.put(active())
        await registry.saved()
        opened.kill()
        with Opened(opened.path) as second:
            assert second.rows == (active(),)


async def test_what_waits_is_written_at_the_end(opened):
    with opened as registry:
        registry.put(active())
    with opened as registry:
        assert registry.rows == (active(),)


@contextmanager
def busy(registry):
    """Somebody else writes to the file: the registry's thread waits in the middle of its own."""
    with closing(sqlite3.connect(registry.folder.database)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.rollback()


async def is_writing(registry):
    """The thread has taken what waits. It shows nothing of that; it is given plenty of time."""
    before = registry.n_waiting
    for _ in range(20):
        await asyncio.sleep(0.005)
    assert registry.n_waiting == before


async def test_a_change_that_comes_while_an_older_one_is_written_is_not_lost(opened):
    with opened as registry:
        with busy(registry):
            registry.put(active(expires_at_ms=2_000))
            await is_writing(registry)
            registry.put(active(expires_at_ms=3_000))
        await registry.saved()
        assert registry.n_waiting == 0
    with opened as registry:
        assert registry.rows == (active(expires_at_ms=3_000),)


async def test_an_end_while_something_is_written_loses_nothing(opened):
    with opened as registry, ThreadPoolExecutor(1) as closer:
        with busy(registry):
            registry.put(active("a"))
            await is_writing(registry)
            registry.put(active("b"))
            closing_ = closer.submit(registry.close)
        closing_.result(10)
    with opened as registry:
        assert {row.id for row in registry.rows} == {uid("a"), uid("b")}


async def test_nothing_waits_where_nothing_was_told(opened):
    with opened as registry:
        await registry.saved()


async def test_its_files_are_for_its_user_alone(opened):
    with opened as registry:
        registry.put(active())
        await registry.saved()
        modes = {
            path.name: stat.S_IMODE(path.stat().st_mode)
            for path in opened.path.glob("streams.sqlite3*")
        }
    assert modes == dict.fromkeys(
        ("streams.sqlite3", "streams.sqlite3-wal", "streams.sqlite3-shm"), 0o600
    )


async def test_a_file_that_others_could_read_is_closed_to_them(opened):
    opened.path.mkdir()
    file = opened.path / "streams.sqlite3"
    file.touch(0o644)
    file.chmod(0o644)
    with opened:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_the_password_of_an_ended_stream_is_in_no_file(opened):
    def found():
        return [
            path.name
            for path in opened.path.rglob("*")
            if path.is_file() and PASSWORD.encode() in path.read_bytes()
        ]

    with opened as registry:
        registry.put(active())
        await registry.saved()
        assert found()
        registry.put(ended())
        await registry.saved()
        assert found() == []
        registry.put(active("two"))
        registry.forget(uid("two"))
        await registry.saved()
        assert found() == []


@pytest.mark.parametrize(
    "make",
    [lambda path: path.mkdir(), os.mkfifo, lambda path: path.symlink_to("/nonexistent/place")],
    ids=["folder", "pipe", "dead link"],
)
async def test_what_stands_in_the_place_of_the_file_is_to_be_moved_away(tmp_path, make):
    folder = StateDir(tmp_path)
    make(folder.database)
    with pytest.raises(SettingsInvalid, match=r"streams.sqlite3 .*cannot be opened: .*; move away"):
        Registry(folder, clock=SystemClock())
    folder.close()


@pytest.mark.parametrize("damage", ["garbage", "middle", "other table", "cut"])
async def test_a_damaged_file_is_set_aside_and_the_server_starts(opened, damage, caplog):
    with opened as registry:
        for i in range(200):
            registry.put(active(f"stream {i}"))
        await registry.saved()
    path = opened.path / "streams.sqlite3"
    whole = path.read_bytes()
    if damage == "garbage":
        path.write_bytes(b"\x00\xffnot a database" * 1000)
    elif damage == "middle":
        path.write_bytes(whole[:5000] + b"\xa5" * 5000 + whole[10000:])
    elif damage == "cut":
        path.write_bytes(whole[: len(whole) // 2 + 100])
    else:
        path.unlink()
        database = sqlite3.connect(path)
        database.execute("CREATE TABLE streams (id TEXT, other TEXT)")
        database.close()
    with opened as registry:
        assert registry.rows == ()
        registry.put(active())
        await registry.saved()
    assert "is damaged" in caplog.text
    assert PASSWORD not in caplog.text
    (aside,) = opened.path.glob("streams.sqlite3.damaged-*")
    assert stat.S_IMODE(aside.stat().st_mode) & 0o077 == 0 or damage == "other table"
    with opened as registry:
        assert registry.rows == (active(),)


async def test_a_row_that_cannot_be_read_costs_no_other(opened, caplog):
    with opened as registry:
        for name in ("good", "bad", "void"):
            registry.put(active(name))
        await registry.saved()
    database = sqlite3.connect(opened.path / "streams.sqlite3")
    broken = """UPDATE streams SET source = '{"url": 5}' WHERE id = ?"""
    database.execute(broken, (uid("bad"),))
    database.execute("UPDATE streams SET source = NULL WHERE id = ?", (uid("void"),))
    database.commit()
    database.close()
    with opened as registry:
        assert registry.rows == (active("good"),)
        assert caplog.text.count("cannot be read") == 2
    caplog.clear()
    with opened as registry:
        assert registry.rows == (active("good"),)
        assert caplog.text == ""  # they were deleted


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "evil", uid("one").upper(), ""])
async def test_a_row_whose_id_is_not_one_of_ours_is_not_believed(opened, name, caplog):
    with opened as registry:
        for row in (active("good"), active("bad"), ended("other")):
            registry.put(row)
        await registry.saved()
    with closing(sqlite3.connect(opened.path / "streams.sqlite3")) as database:
        database.execute("UPDATE streams SET id = ? WHERE id = ?", (name, uid("bad")))
        database.execute("UPDATE streams SET id = ? WHERE id = ?", (uid("x"), uid("other")))
        database.commit()
    with opened as registry:
        assert registry.rows == (active("good"),)
        assert caplog.text.count("cannot be read") == 2


async def test_a_file_of_the_first_version_is_taken_over(opened):
    with opened as registry:
        registry.put(active())
        await registry.saved()
    with closing(sqlite3.connect(opened.path / "streams.sqlite3")) as database:
        database.execute("ALTER TABLE streams DROP COLUMN mark")
        database.execute("PRAGMA user_version = 1")
        database.commit()
    mark = StoreMark(n_produced=5, first_at_ms=1_100, newest_ms=800, width=64, height=48)
    with opened as registry:
        assert registry.rows == (active(),)
        registry.put(active(mark=mark))
    with opened as registry:
        assert registry.rows == (active(mark=mark),)


ON_A_FULL_DISK = """
import asyncio, os, subprocess, sys
from contextlib import suppress
from pathlib import Path
from liveedge.core.clock import SystemClock
from liveedge.core.errors import StreamLimitReached
from liveedge.service.registry import Registry
from liveedge.service.state_dir import StateDir
from tests.component.test_registry import active, uid
from tests.serving import until

path = Path(sys.argv[1]) / "state"

def opened():
    registry = Registry(StateDir(path), clock=SystemClock())
    registry.start()
    return registry

async def leave():
    registry = opened()
    for name in ("one", "two"):
        registry.put(active(name))
        registry.folder.frames_of(uid(name)).mkdir()
    await registry.saved()
    os._exit(0)  # no farewell

async def come_back():
    if "cleared" in sys.argv:  # as a backup leaves it, or another file system
        (path / "streams.sqlite3-shm").unlink()
    with (path.parent / "fill").open("wb", buffering=0) as fill, suppress(OSError):
        while True:
            fill.write(bytes(4096))
    registry = opened()
    print(len(registry.rows))
    registry.put(active("three", finished="x" * 50_000))
    with suppress(StreamLimitReached):
        await registry.saved()
    print(registry.failure)
    print(registry.folder.note_ended(uid("one")))
    (path.parent / "fill").unlink()
    await until(lambda: registry.n_waiting == 0)
    registry.close()
    registry.folder.close()
    print(len(opened().rows), registry.folder.has_ended(uid("one")))

if "leave" in sys.argv:
    asyncio.run(leave())
subprocess.run([sys.executable, *sys.argv, "leave"], check=True)
asyncio.run(come_back())
os._exit(0)
"""
MOUNT = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=2m none "$0" && exec "$@"')


@pytest.mark.parametrize("how", ["killed", "cleared"])
def test_on_a_full_disk_a_restart_knows_all_streams_and_notes_a_deletion(tmp_path, how):
    if shutil.which("unshare") is None:
        pytest.skip("needs the right to mount a small disk of its own")
    disk, script = tmp_path / "disk", tmp_path / "script.py"
    disk.mkdir()
    script.write_text(ON_A_FULL_DISK)
    command = [*MOUNT, str(disk), sys.executable, str(script), str(disk), how]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    if "denied" in done.stderr or "not permitted" in done.stderr:
        pytest.skip("needs the right to mount a small disk of its own")
    assert done.returncode == 0, done.stderr
    known, failure, noted, after = done.stdout.splitlines()
    assert (known, noted, after) == ("2", "True", "3 True")
    assert failure != "None"
    assert ("its 2 streams go on, new ones are refused" in done.stderr) == (how == "cleared")


async def test_a_file_of_a_newer_version_is_left_alone(opened):
    with opened as registry:
        registry.put(active())
    database = sqlite3.connect(opened.path / "streams.sqlite3")
    database.execute("PRAGMA user_version = 99")
    database.close()
    folder = StateDir(opened.path)
    with pytest.raises(
        SettingsInvalid, match=r"newer liveedge: its version is 99, this one reads 2"
    ):
        Registry(folder, clock=SystemClock())
    folder.close()
    assert not list(opened.path.glob("*.damaged-*"))


async def test_a_file_that_cannot_be_opened_is_told_with_its_place(tmp_path):
    folder = StateDir(tmp_path)
    folder.database.mkdir()
    with pytest.raises(SettingsInvalid, match=r"streams.sqlite3 .*cannot be opened: .*directory"):
        Registry(folder, clock=SystemClock())
    folder.close()


def refuse(registry):
    """Let nothing more be written: a full disk, as SQLite sees it."""
    (pages,) = registry._database.execute("PRAGMA page_count").fetchone()
    registry._database.execute(f"PRAGMA max_page_count = {pages}")


async def test_a_full_disk_is_told_and_costs_nothing_once_it_has_room(opened, caplog):
    rows = [active(f"stream {i}", finished="x" * 500) for i in range(50)]
    with opened as registry:
        registry.put(rows[0])
        await registry.saved()
        refuse(registry)
        for row in rows:
            registry.put(row)
        with pytest.raises(
            StreamLimitReached, match=r"streams.sqlite3 .*cannot be written: .*full"
        ):
            await registry.saved()
        assert registry.failure is not None
        assert registry.n_waiting == len(rows)
        with pytest.raises(StreamLimitReached):  # at once: nobody waits for a disk that refuses
            await registry.saved()
        await until(lambda: registry.n_failed >= 2)
        assert caplog.text.count("cannot be written") == 1  # not at every try
        registry._database.execute("PRAGMA max_page_count = 1000000")
        await until(lambda: registry.n_waiting == 0)
        await registry.saved()
        assert registry.failure is None
    with opened as registry:
        assert sorted(row.id for row in registry.rows) == sorted(row.id for row in rows)


async def test_an_end_with_a_full_disk_is_quick_and_told(opened, caplog):
    with opened as registry:
        registry.put(active())
        await registry.saved()
        refuse(registry)
        for i in range(50):
            registry.put(active(f"stream {i}", finished="x" * 500))
    assert "50 streams could not be written" in caplog.text
    with opened as registry:
        assert registry.rows == (active(),)


async def test_a_file_that_is_damaged_while_it_is_used_is_written_anew(opened, caplog):
    rows = [active(f"stream {i}", finished="x" * 500) for i in range(50)]
    with opened as registry:
        for row in rows:
            registry.put(row)
        await registry.saved()
        registry._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        whole = registry.folder.database.read_bytes()
        registry.folder.database.write_bytes(whole[:100] + b"\xa5" * (len(whole) - 100))
        registry._database.execute("PRAGMA cache_size = 0")
        registry._database.execute("PRAGMA shrink_memory")
        registry.put(active("new"))
        await until(lambda: registry.n_failed > 0)
        await until(lambda: registry.n_waiting == 0)
        assert registry.failure is None
    assert list(opened.path.glob("*.damaged-*"))
    with opened as registry:
        assert {row.id for row in registry.rows} == {uid("new"), *(row.id for row in rows)}


async def test_many_waiters_are_all_woken(opened):
    with opened as registry:

        async def put(i):
            registry.put(active(f"stream {i}"))
            await registry.saved()

        await asyncio.wait_for(asyncio.gather(*(put(i) for i in range(100))), 20)
        assert len(registry.rows) == 100


async def test_no_url_is_ever_logged(opened, caplog):
    caplog.set_level(logging.DEBUG)
    with opened as registry:
        registry.put(active())
        await registry.saved()
        assert PASSWORD not in repr(registry.rows)
    assert PASSWORD not in caplog.text
