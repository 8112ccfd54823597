"""Streams over restarts of the server: leases, tombstones and sources, on a clock that the test
moves. The frames themselves are the business of `test_frames_restart.py`."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from liveedge.core.errors import (
    SourceUnavailable,
    StreamLimitReached,
    StreamNotFound,
    StreamStateInvalid,
)
from liveedge.frames.store import INDICES_AHEAD, FrameStore, StoreLimits
from liveedge.media.published import PublishedSource
from liveedge.media.source import SourceStatus
from liveedge.service.registry import ActiveRow, Registry
from liveedge.service.sources import Pipeline, SourceSpec
from liveedge.service.state_dir import KEPT_FREE_BYTES, StateDir, free_bytes
from liveedge.service.streams import LEASE_S, TOMBSTONE_S, StreamLimits, Streams
from liveedge.service.workers import Workers
from liveedge.testing.clock import FakeClock
from liveedge.testing.source import plain_pixels
from tests.serving import until

MIB = 1 << 20
LIMITS = StoreLimits(hot_bytes=MIB, history_bytes=0)
RTSP = SourceSpec(type="rtsp", url="rtsp://user:pass@camera/live")
TENANT = "tenant"


class FakeFeed:
    """A source that does what the test says, and remembers what was asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.told = SourceStatus(health="live", codec="h264")
        self.opens = True

    def start(self) -> None:
        self.calls.append("start")

    def resume(self) -> None:
        self.calls.append("resume")

    async def opened(self) -> None:
        if not self.opens:
            raise SourceUnavailable("the rtsp source could not be opened: refused")

    def status(self) -> SourceStatus:
        return self.told

    def stop(self, timeout_s: float = 5.0) -> bool:
        self.calls.append("stop")
        return True


class PassingClock(FakeClock):
    """A millisecond passes with every look at the wall clock, as it may on a busy machine."""

    def wall_ms(self) -> int:
        now_ms = super().wall_ms()
        self.move(0.001)
        return now_ms


@dataclass
class Life:
    """One server after the other on the same folder."""

    path: Path
    clock: FakeClock = field(default_factory=FakeClock)
    limits: StreamLimits = field(default_factory=lambda: StreamLimits(disk_bytes_per_stream=MIB))
    free_bytes: int = 1 << 40
    opens: bool = True
    feeds: dict[str, FakeFeed] = field(default_factory=dict)
    resumed: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)  # cannot be made

    def make(self, stream_id: str, spec: SourceSpec, *, resumed: bool = False) -> Pipeline:
        if stream_id in self.broken:
            raise OSError(5, "Input/output error")
        self.folder.frames_of(stream_id).mkdir(exist_ok=True)
        feed = self.feeds[stream_id] = FakeFeed()
        feed.opens = self.opens
        if resumed:
            self.resumed.add(stream_id)
        store = FrameStore(stream_id, clock=self.clock, limits=LIMITS)
        is_published = spec.type in ("livekit", "whip")
        published = PublishedSource("livekit") if is_published else None
        return Pipeline(store=store, feed=feed, published=published)

    async def start(self) -> Streams:
        self.feeds, self.resumed = {}, set()
        self.folder = StateDir(self.path, free=lambda _folder: self.free_bytes)
        self.registry = Registry(self.folder, clock=self.clock)
        self.workers = Workers("test", n_threads=2)
        self.streams = Streams(
            clock=self.clock,
            make_pipeline=self.make,
            limits=self.limits,
            workers=self.workers,
            registry=self.registry,
        )
        await self.streams.resume()
        self.streams.start()
        return self.streams

    async def stop(self) -> None:
        await self.streams.close()
        self.workers.close()

    async def kill(self) -> None:
        """Nothing more is told to anybody, as with kill -9."""
        await self.streams._sweeping.close()
        await self.streams._closing.close()
        self.registry.close()
        self.folder.close()
        self.workers.close()

    async def restart(self, *, down_s: float = 1.0, kill: bool = False) -> Streams:
        """Another process: its monotonic clock begins anywhere, the wall clock went on."""
        await (self.kill() if kill else self.stop())
        wall_ms = self.clock.wall_ms() + round(down_s * 1000)
        make_clock = type(self.clock)
        self.clock = make_clock(monotonic_s=self.clock.monotonic_s() / 3 + 17, wall_ms=wall_ms)
        return await self.start()

    def folders(self) -> set[str]:
        return {path.name for path in (self.path / "streams").iterdir()}


@asynccontextmanager
async def living(path: Path, **options):
    life = Life(path / "state", **options)
    await life.start()
    yield life
    await life.stop()


@pytest.fixture(params=[False, True], ids=["stopped", "killed"])
def kill(request):
    return request.param


async def test_a_stream_comes_back_as_it_was(tmp_path, kill):
    async with living(tmp_path) as life:
        before = await life.streams.create(TENANT, RTSP)
        life.clock.move(100)
        kept = life.streams.keepalive(TENANT, before.id)
        await life.streams.settled()
        streams = await life.restart(down_s=30, kill=kill)
        after = streams.view(TENANT, before.id)
        assert (after.id, after.state) == (before.id, "active")
        assert after.source == before.source
        assert after.created_at_ms == before.created_at_ms
        assert after.expires_at_ms == kept.expires_at_ms
        assert life.feeds[before.id].calls == ["resume"]
        with pytest.raises(StreamNotFound):
            streams.view("another tenant", before.id)


async def test_no_restart_makes_a_lease_longer_however_long_it_takes(tmp_path, kill):
    async with living(tmp_path, clock=PassingClock()) as life:
        view = await life.streams.create(TENANT, RTSP)
        assert view.expires_at_ms == view.created_at_ms + LEASE_S * 1000
        for _ in range(3):
            streams = await life.restart(kill=kill)
            assert streams.view(TENANT, view.id).expires_at_ms == view.expires_at_ms


async def test_a_stop_tells_nobody_that_the_stream_has_ended(tmp_path):
    async with living(tmp_path) as life:
        view = await life.streams.create(TENANT, RTSP)
        ended: list[str] = []
        life.streams.on_end(ended.append)
        feed = life.feeds[view.id]
        await life.restart()
        assert feed.calls[:2] == ["start", "stop"]
        assert ended == []
        assert view.id in life.folders()


async def test_the_lease_goes_on_by_the_wall_clock(tmp_path, kill):
    async with living(tmp_path) as life:
        view = await life.streams.create(TENANT, RTSP)
        streams = await life.restart(down_s=LEASE_S - 20, kill=kill)
        life.clock.move(19)
        assert streams.view(TENANT, view.id).state == "active"
        life.clock.move(2)
        ended = streams.view(TENANT, view.id)
        assert (ended.state, ended.end_reason) == ("ended", "expired")
        assert ended.ended_at_ms == view.expires_at_ms


async def test_a_lease_that_ran_out_while_the_server_was_down_ended_then(tmp_path, kill):
    async with living(tmp_path) as life:
        view = await life.streams.create(TENANT, RTSP)
        streams = await life.restart(down_s=LEASE_S + 100, kill=kill)
        ended = streams.view(TENANT, view.id)
        assert (ended.state, ended.end_reason) == ("ended", "expired")
        assert ended.ended_at_ms == view.expires_at_ms
        assert "resume" not in life.feeds[view.id].calls
        await until(lambda: not life.folders())
        life.clock.move(TOMBSTONE_S - 101)
        assert streams.view(TENANT, view.id) == ended
        life.clock.move(2)
        with pytest.raises(StreamNotFound):
            streams.view(TENANT, view.id)
        assert (await life.restart()).views(TENANT) == []


async def test_a_tombstone_that_would_be_over_is_not_put_up_again(tmp_path, kill):
    async with living(tmp_path) as life:
        view = await life.streams.create(TENANT, RTSP)
        streams = await life.restart(down_s=LEASE_S + TOMBSTONE_S + 1, kill=kill)
        with pytest.raises(StreamNotFound):
            streams.view(TENANT, view.id)
        assert streams.views(TENANT) == []
        await life.streams.settled()
        assert life.registry.rows == ()


async def test_a_tombstone_survives_for_the_rest_of_its_time(tmp_path, kill):
    async with living(tmp_path) as life:
        view = await life.streams.create(TENANT, RTSP)
        life.clock.move(10)
        life.streams.delete(TENANT, view.id)
        await life.streams.settled()
        before = life.streams.view(TENANT, view.id)
        streams = await life.restart(down_s=100, kill=kill)
        assert streams.view(TENANT, view.id) == before
        assert life.feeds == {}
        streams.delete(TENANT, view.id)  # again and again
        life.clock.move(TOMBSTONE_S - 101)
        assert streams.view(TENANT, view.id) == before
        life.clock.move(2)
        with pytest.raises(StreamNotFound):
            streams.delete(TENANT, view.id)


async def test_frames_of_an_ended_stream_are_deleted_at_once(tmp_path):
    async with living(tmp_path) as life:
        view = await life.streams.create(TENANT, RTSP)
        assert life.folders() == {view.id}
        life.streams.delete(TENANT, view.id)
        await until(lambda: not life.folders())


async def test_what_a_kill_left_behind_is_deleted_at_the_start(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    async with living(tmp_path) as life:
        view = await life.streams.create(TENANT, RTSP)
        (life.path / "streams" / "left").mkdir()
        (life.path / "streams" / "left" / "frames").write_bytes(bytes(1000))
        await life.restart(kill=True)
        await until(lambda: life.folders() == {view.id})
        assert "left belongs to no stream" in caplog.text


def fill_registry(life: Life) -> None:
    """Nothing more can be written, as on a full disk."""
    assert life.registry._database is not None
    (pages,) = life.registry._database.execute("PRAGMA page_count").fetchone()
    life.registry._database.execute(f"PRAGMA max_page_count = {pages}")


async def test_a_stream_that_was_deleted_on_a_full_disk_stays_deleted(tmp_path):
    async with living(tmp_path) as life:
        source = SourceSpec(type="rtsp", url=f"rtsp://camera/{'x' * 20_000}")
        kept, deleted = [await life.streams.create(TENANT, source) for _ in range(2)]
        (life.path / "streams" / deleted.id / "frames").write_bytes(bytes(1000))
        fill_registry(life)
        unwritable = replace(source, url=f"rtsp://camera/{'y' * 100_000}")
        with pytest.raises(StreamLimitReached):
            await life.streams.create(TENANT, unwritable)
        life.registry.put(replace(life.streams._active[kept.id].row, spec=unwritable))
        life.streams.delete(TENANT, deleted.id)
        await life.streams.settled()
        assert life.registry.failure is not None
        note = life.path / "streams" / f"{deleted.id}.ended"
        await until(lambda: note.is_dir() and not list(note.iterdir()))  # its space is free
        streams = await life.restart(kill=True)
        view = streams.view(TENANT, deleted.id)
        assert (view.state, view.end_reason) == ("ended", "deleted")
        streams.delete(TENANT, deleted.id)  # again and again
        assert deleted.id not in life.feeds
        assert streams.view(TENANT, kept.id).state == "active"
        await until(lambda: life.folders() == {kept.id})  # now that the registry knows
        streams = await life.restart(kill=True)
        assert streams.view(TENANT, deleted.id) == view


async def test_a_deletion_that_a_restart_would_not_know_is_refused(tmp_path):
    async with living(tmp_path) as life:
        view = await life.streams.create(TENANT, RTSP)
        fill_registry(life)
        long = replace(RTSP, url=f"rtsp://camera/{'x' * 20_000}")
        life.registry.put(replace(life.streams._active[view.id].row, spec=long))
        with pytest.raises(StreamLimitReached):
            await life.registry.saved()
        life.path.rename(tmp_path / "elsewhere")
        with pytest.raises(StreamLimitReached, match=r"not deleted.*cannot be written.*again"):
            life.streams.delete(TENANT, view.id)
        assert life.streams.view(TENANT, view.id).state == "active"
        (tmp_path / "elsewhere").rename(life.path)
        life.streams.delete(TENANT, view.id)
        assert life.streams.view(TENANT, view.id).state == "ended"


async def test_no_index_is_given_twice_when_the_frames_are_lost(tmp_path, kill, caplog):
    async with living(tmp_path) as life:  # whose stores keep nothing
        view = await life.streams.create(TENANT, RTSP)
        store = life.streams.own_store(TENANT, view.id)
        for expected in (5, 5 + INDICES_AHEAD + 3):
            store = life.streams.own_store(TENANT, view.id)
            while (store.counters().last_frame_index or 0) < expected - 1:
                store.publish(plain_pixels())
            await life.clock.advance(1.1)  # the sweeper looks
            await life.streams.settled()
            given = store.publish(plain_pixels())
            assert given is not None
            before = store.counters()
            streams = await life.restart(kill=kill)
            after = streams.view(TENANT, view.id)
            assert f"stream {view.id}: its history is lost" in caplog.text
            assert after.first_frame_at_ms == before.first_frame_at_ms
            frame = streams.own_store(TENANT, view.id).publish(plain_pixels())
            assert frame is not None
            assert frame.index > given.index
            assert frame.stream_time_ms > given.stream_time_ms
            assert len(streams.view(TENANT, view.id).gaps) == 1
            assert streams.totals().frames == 1


async def test_the_registry_is_never_far_behind_the_frames(tmp_path):
    async with living(tmp_path) as life:
        view = await life.streams.create(TENANT, RTSP)
        store = life.streams.own_store(TENANT, view.id)
        for _ in range(3):
            for _ in range(INDICES_AHEAD // 2 + 1):
                store.publish(plain_pixels())
            await life.clock.advance(1.1)
            await life.streams.settled()
            (row,) = life.registry.rows
            assert isinstance(row, ActiveRow)
            assert row.mark == store.mark()


async def test_frames_of_a_lost_registry_are_kept_for_a_day_and_said(tmp_path, caplog):
    async with living(tmp_path) as life:
        view = await life.streams.create(TENANT, RTSP)
        ended = await life.streams.create(TENANT, RTSP)
        for stream_id in (view.id, ended.id):
            (life.path / "streams" / stream_id / "index").write_text("x")
        life.streams.delete(TENANT, ended.id)
        await until(lambda: life.folders() == {view.id})
        await life.kill()
        for path in life.path.glob("streams.sqlite3*"):
            path.unlink()
        await life.start()
        (place,) = life.path.glob("lost-*")
        assert "frames of 1 streams that are not known any more" in caplog.text
        assert f"are kept in {place} for a day" in caplog.text
        assert (place / view.id / "index").exists()
        assert life.folders() == set()
        await life.clock.advance(23 * 3600)
        assert place.exists()
        await life.clock.advance(2 * 3600)
        await until(lambda: not place.exists())


async def test_what_is_left_of_an_ended_stream_is_not_kept(tmp_path):
    async with living(tmp_path) as life:
        view = await life.streams.create(TENANT, RTSP)
        life.streams.delete(TENANT, view.id)
        await until(lambda: not life.folders())
        await life.kill()
        left = life.path / "streams" / view.id
        left.mkdir()
        (left / "index").write_text("x")
        await life.start()
        await until(lambda: not life.folders())
        assert not list(life.path.glob("lost-*"))


async def test_a_folder_that_was_moved_away_refuses_new_streams_and_costs_no_old_one(tmp_path):
    async with living(tmp_path) as life:
        old = await life.streams.create(TENANT, RTSP)
        life.folder._free = free_bytes
        life.path.rename(tmp_path / "elsewhere")
        with pytest.raises(StreamLimitReached, match=rf"{life.path} \(state_dir\) is not usable"):
            await life.streams.create(TENANT, RTSP)
        assert life.streams.view(TENANT, old.id).state == "active"
        life.streams.delete(TENANT, old.id)
        await life.streams.settled()
        (tmp_path / "elsewhere").rename(life.path)


async def test_of_two_that_come_at_once_only_as_many_are_made_as_have_room(tmp_path):
    async with living(tmp_path) as life:
        n_looks = 0

        def free(_folder: Path) -> int:
            nonlocal n_looks
            n_looks += 1
            return KEPT_FREE_BYTES + MIB * (1 - len(life.folders()))

        make, never = life.make, threading.Event()

        def slowly(stream_id: str, spec: SourceSpec, *, resumed: bool = False) -> Pipeline:
            for _ in range(50):  # time for the other to look too, if it may
                never.wait(0.01 if n_looks < 2 else 0)
            return make(stream_id, spec, resumed=resumed)

        life.folder._free, life.streams._make_pipeline = free, slowly
        both = (life.streams.create(TENANT, RTSP) for _ in range(2))
        done = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(isinstance(one, StreamLimitReached) for one in done) == [False, True]


async def test_a_stream_whose_frames_cannot_be_kept_is_refused(tmp_path):
    async with living(tmp_path) as life:
        make = life.make

        def without_files(stream_id: str, spec: SourceSpec, *, resumed: bool = False) -> Pipeline:
            pipeline = make(stream_id, spec, resumed=resumed)
            (tmp_path / "file").write_text("no folder")
            store = FrameStore(
                stream_id, clock=life.clock, limits=LIMITS, folder=tmp_path / "file" / "cam"
            )
            return replace(pipeline, store=store)

        life.streams._make_pipeline = without_files
        with pytest.raises(StreamLimitReached, match=rf"kept in {life.path} .*Not a directory"):
            await life.streams.create(TENANT, RTSP)
        assert life.folders() == set()
        assert life.streams.n_active == life.streams.n_opening == 0
        assert life.registry.rows == ()


async def test_a_pushed_stream_with_frames_says_that_none_came_since_the_restart(tmp_path):
    async with living(tmp_path) as life:
        view = await life.streams.create(TENANT, SourceSpec(type="push"))
        feed = life.feeds[view.id]
        feed.told = SourceStatus(health="waiting_for_publisher", reason="none yet")
        assert life.streams.view(TENANT, view.id).health_reason == "none yet"
        life.streams.own_store(TENANT, view.id).publish(plain_pixels())
        told = life.streams.view(TENANT, view.id).health_reason
        assert told == "no frame has been pushed since the restart"


async def test_a_stream_that_could_not_be_opened_leaves_nothing(tmp_path):
    async with living(tmp_path, opens=False) as life:
        with pytest.raises(SourceUnavailable):
            await life.streams.create(TENANT, RTSP)
        await until(lambda: not life.folders())
        assert life.registry.rows == ()


async def test_a_caller_that_leaves_while_its_stream_is_written_leaves_nothing(tmp_path):
    async with living(tmp_path) as life:
        creating = asyncio.ensure_future(life.streams.create(TENANT, RTSP))
        await until(lambda: bool(life.registry.rows) or creating.done())
        creating.cancel()
        done = (await asyncio.gather(creating, return_exceptions=True))[0]
        if isinstance(done, asyncio.CancelledError):  # else it was faster
            await until(lambda: not life.folders())
            assert life.registry.rows == ()
            assert life.streams.n_active == life.streams.n_opening == 0


async def test_a_published_stream_waits_for_its_publisher(tmp_path, kill):
    async with living(tmp_path) as life:
        view = await life.streams.create(TENANT, SourceSpec(type="livekit"))
        entrance = life.streams.publisher_entrance(view.id)
        streams = await life.restart(kill=kill)
        assert streams.publisher_entrance(view.id) is not entrance
        with pytest.raises(StreamStateInvalid, match="takes no publisher: it is starting"):
            streams.publisher_entrance(view.id).attach(lambda _reason: None)  # the feed is a fake


async def test_only_published_streams_have_an_entrance(tmp_path):
    async with living(tmp_path) as life:
        pulled = await life.streams.create(TENANT, RTSP)
        with pytest.raises(StreamStateInvalid, match=r"type rtsp; only .* livekit or whip"):
            life.streams.publisher_entrance(pulled.id)
        with pytest.raises(StreamNotFound):
            life.streams.publisher_entrance("nobody's")
        published = await life.streams.create(TENANT, SourceSpec(type="whip"))
        assert life.streams.publisher_entrance(published.id)
        life.streams.delete(TENANT, published.id)
        with pytest.raises(StreamNotFound):
            life.streams.publisher_entrance(published.id)


async def test_a_source_that_has_ended_is_not_played_again(tmp_path, kill):
    async with living(tmp_path) as life:
        view = await life.streams.create(TENANT, SourceSpec(type="file", url="file:///a.mp4"))
        life.feeds[view.id].told = SourceStatus(health="ended", reason="the source has ended")
        await life.clock.advance(2)  # the sweeper looks
        await life.streams.settled()
        streams = await life.restart(kill=kill)
        assert life.feeds[view.id].calls == []
        after = streams.view(TENANT, view.id)
        assert (after.state, after.health) == ("active", "ended")
        assert after.health_reason == "the source has ended"
        streams.keepalive(TENANT, view.id)  # its frames can be asked for as long as somebody wants
        await streams.settled()
        streams = await life.restart(kill=kill)
        assert streams.view(TENANT, view.id).health == "ended"


async def test_one_stream_that_cannot_be_brought_back_costs_no_other(tmp_path, caplog):
    async with living(tmp_path) as life:
        good, bad = [await life.streams.create(TENANT, RTSP) for _ in range(2)]
        life.broken = {bad.id}
        streams = await life.restart()
        assert [view.id for view in streams.views(TENANT)] == [good.id]
        assert f"stream {bad.id} could not be brought back" in caplog.text
        assert life.folders() == {good.id, bad.id}
        life.broken = set()  # the disk is well again
        streams = await life.restart()
        assert {view.id for view in streams.views(TENANT)} == {good.id, bad.id}


async def test_streams_that_the_memory_no_longer_holds_are_ended_newest_first(tmp_path, caplog):
    async with living(tmp_path) as life:
        views = []
        for _ in range(3):
            views.append(await life.streams.create(TENANT, RTSP))
            life.clock.move(1)
        life.limits = replace(life.limits, max_streams=2)
        streams = await life.restart()
        states = [streams.view(TENANT, view.id).state for view in views]
        assert states == ["active", "active", "ended"]
        assert "resume" not in life.feeds[views[2].id].calls
        assert "room for 2 streams now" in caplog.text
        await until(lambda: views[2].id not in life.folders())


async def test_a_stream_whose_lease_ran_out_meanwhile_takes_no_place(tmp_path):
    async with living(tmp_path) as life:
        old = await life.streams.create(TENANT, RTSP)
        life.clock.move(LEASE_S / 2)
        young = [await life.streams.create(TENANT, RTSP) for _ in range(2)]
        life.limits = replace(life.limits, max_streams=2)
        streams = await life.restart(down_s=LEASE_S / 2 + 1)
        assert streams.view(TENANT, old.id).end_reason == "expired"
        assert [streams.view(TENANT, one.id).state for one in young] == ["active"] * 2


async def test_a_stream_without_disk_space_is_refused_and_says_where(tmp_path):
    async with living(tmp_path, free_bytes=10 * MIB) as life:
        with pytest.raises(StreamLimitReached, match=rf"{life.path} \(state_dir\) has 10 MB free"):
            await life.streams.create(TENANT, RTSP)
        assert not life.folders()
        life.free_bytes = 1 << 40
        assert await life.streams.create(TENANT, RTSP)


async def test_a_registry_that_cannot_be_written_refuses_new_streams_and_keeps_the_old(tmp_path):
    async with living(tmp_path) as life:
        old = await life.streams.create(TENANT, RTSP)
        (pages,) = life.registry._database.execute("PRAGMA page_count").fetchone()
        life.registry._database.execute(f"PRAGMA max_page_count = {pages}")
        long = replace(RTSP, url=f"rtsp://camera/{'x' * 20_000}")
        with pytest.raises(StreamLimitReached, match=r"state_dir.* cannot be written: .*full"):
            await life.streams.create(TENANT, long)
        assert [view.id for view in life.streams.views(TENANT)] == [old.id]
        await until(lambda: life.folders() == {old.id})
        assert [row.id for row in life.registry.rows] == [old.id]
        assert life.streams.totals().unsaved == life.registry.n_waiting
        await life.streams.settled()  # does not raise
        assert life.streams.keepalive(TENANT, old.id).state == "active"


async def test_a_wall_clock_that_was_set_back_makes_no_lease_longer_than_one(tmp_path):
    async with living(tmp_path) as life:
        view = await life.streams.create(TENANT, RTSP)
        streams = await life.restart(down_s=-86_400)
        after = streams.view(TENANT, view.id)
        assert after.expires_at_ms == life.clock.wall_ms() + LEASE_S * 1000
        life.clock.move(LEASE_S + 1)
        assert streams.view(TENANT, view.id).state == "ended"


async def test_totals_count_from_the_start_of_the_process(tmp_path):
    async with living(tmp_path) as life:
        view = await life.streams.create(TENANT, RTSP)
        for _ in range(5):
            life.streams.own_store(TENANT, view.id).publish(plain_pixels())
        assert life.streams.totals().frames == 5
        make = life.make

        def with_frames(stream_id, spec, *, resumed=False):
            pipeline = make(stream_id, spec, resumed=resumed)
            for _ in range(5):
                pipeline.store.publish(plain_pixels())
            return pipeline

        life.make = with_frames
        streams = await life.restart()
        assert streams.totals().frames == 0
        streams.own_store(TENANT, view.id).publish(plain_pixels())
        assert streams.totals().frames == 1
        streams.delete(TENANT, view.id)
        assert streams.totals().frames == 1
        assert streams.totals().ended == {"deleted": 1}


# ── any story ──

create = st.tuples(st.just("create"), st.sampled_from(["alpha", "beta"]))
keepalive = st.tuples(st.just("keepalive"), st.integers(0, 5))
delete = st.tuples(st.just("delete"), st.integers(0, 5))
passing = st.tuples(st.just("pass"), st.integers(1, 400))
restart = st.tuples(st.just("restart"), st.tuples(st.integers(0, 700), st.booleans()))
stories = st.lists(st.one_of(create, keepalive, delete, passing, restart), max_size=14)


@dataclass
class Expected:
    """What the wire spec says of one stream."""

    tenant: str
    created_at_ms: int
    expires_at_ms: int
    deleted_at_ms: int | None = None

    @property
    def ended_at_ms(self) -> int:
        return min(self.expires_at_ms, self.deleted_at_ms or self.expires_at_ms)

    def is_active(self, now_ms: int) -> bool:
        return now_ms < self.ended_at_ms

    def is_known(self, now_ms: int) -> bool:
        return now_ms < self.ended_at_ms + TOMBSTONE_S * 1000


@given(story=stories)
@settings(max_examples=25)
def test_every_story_ends_as_without_restarts(story):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(story, Path(folder)))


async def play(story, path):
    expected: dict[str, Expected] = {}
    async with living(path) as life:
        for verb, what in story:
            await VERBS[verb](life, expected, what)
            life.clock.move(0.003)  # nothing is looked at in the very instant of its end
            check(life, expected)


async def create_one(life, expected, tenant):
    view = await life.streams.create(tenant, RTSP)
    expected[view.id] = Expected(tenant, view.created_at_ms, view.expires_at_ms)


async def keep_one(life, expected, i):
    for stream_id, one in list(expected.items())[i : i + 1]:
        now_ms = life.clock.wall_ms()
        if one.is_active(now_ms):
            life.streams.keepalive(one.tenant, stream_id)
            one.expires_at_ms = now_ms + LEASE_S * 1000
        else:
            with pytest.raises(StreamNotFound):
                life.streams.keepalive(one.tenant, stream_id)
    await life.streams.settled()


async def delete_one(life, expected, i):
    for stream_id, one in list(expected.items())[i : i + 1]:
        now_ms = life.clock.wall_ms()
        if one.is_known(now_ms):
            life.streams.delete(one.tenant, stream_id)
        else:
            with pytest.raises(StreamNotFound):
                life.streams.delete(one.tenant, stream_id)
        if one.is_active(now_ms):
            one.deleted_at_ms = now_ms
    await life.streams.settled()


async def pass_time(life, _expected, seconds):
    life.clock.move(seconds)


async def restart_once(life, _expected, how):
    down_s, kill = how
    await life.restart(down_s=down_s, kill=kill)


VERBS = {
    "create": create_one,
    "keepalive": keep_one,
    "delete": delete_one,
    "pass": pass_time,
    "restart": restart_once,
}


def check(life, expected):
    now_ms = life.clock.wall_ms()
    for stream_id, one in expected.items():
        if not one.is_known(now_ms):
            with pytest.raises(StreamNotFound):
                life.streams.view(one.tenant, stream_id)
            continue
        view = life.streams.view(one.tenant, stream_id)
        assert view.created_at_ms == one.created_at_ms
        if one.is_active(now_ms):
            assert (view.state, view.expires_at_ms) == ("active", one.expires_at_ms)
        else:
            reason = "expired" if one.deleted_at_ms is None else "deleted"
            assert (view.state, view.end_reason) == ("ended", reason)
            assert view.ended_at_ms == one.ended_at_ms
    known = {one.id for tenant in ("alpha", "beta") for one in life.streams.views(tenant)}
    assert known == {i for i, one in expected.items() if one.is_known(now_ms)}
