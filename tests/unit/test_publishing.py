"""What publishers need is made once, when it is first needed, for everybody who waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from liveedge.core.errors import ModelUnavailable, SettingsInvalid
from liveedge.service.publishing import Publishing, PublishParts
from liveedge.service.tokens import PublishTokens
from liveedge.testing.clock import FakeClock

RARE_MODULE = "liveedge.testing.rarely"  # does not exist: importing it fails


class FakeIngest:
    """The entrance, as far as this is concerned."""

    def __init__(self) -> None:
        self.refreshed: list[tuple[str, str]] = []
        self.is_closed = False

    def refresh(self, stream_id: str, token: str) -> None:
        self.refreshed.append((stream_id, token))

    async def close(self) -> None:
        self.is_closed = True


class Parts:
    """Counts what is made of it."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.n_closed = 0
        self.port_is_taken = False

    def tokens(self) -> PublishTokens:
        self.made.append("tokens")
        return PublishTokens(bytes(32), clock=FakeClock())

    def ingest(self, _tokens: PublishTokens) -> Any:
        if self.port_is_taken:
            raise SettingsInvalid("the UDP port cannot be opened")
        ingest = FakeIngest()
        self.made.append(ingest)
        return ingest

    def close(self) -> None:
        self.n_closed += 1

    def publishing(self, *modules: str) -> Publishing:
        parts = PublishParts(
            token_modules=("liveedge.service.tokens",),
            ingest_modules=modules,
            tokens=self.tokens,
            ingest=self.ingest,
            totals=dict,
            close=self.close,
        )
        return Publishing(parts, valid_s=300)


async def test_nothing_is_made_for_streams_that_take_no_publisher():
    parts = Parts()
    publishing = parts.publishing()
    for kind in ("rtsp", "push", "sim"):
        assert await publishing.told("s", kind, base_url="http://h") is None
        assert await publishing.renewed("s", kind, base_url="http://h") is None
    await publishing.close()
    assert (parts.made, parts.n_closed) == ([], 0)


async def test_the_first_publisher_that_is_expected_has_the_entrance_made_for_all():
    parts = Parts()
    publishing = parts.publishing("json")
    view = await publishing.told("s", "livekit", base_url="https://h/x")
    assert view is not None
    assert (view.url, view.whip_url) == ("wss://h/x", "https://h/x/whip/s")
    assert view.token not in repr(view)
    one, other = await asyncio.gather(publishing.ingest(), publishing.ingest())
    assert one is other is publishing.loaded
    assert len(parts.made) == 2
    await publishing.close()


async def test_who_leaves_while_it_is_made_does_not_end_it_for_the_others():
    publishing = Parts().publishing("json")
    waiting = [asyncio.ensure_future(publishing.ingest()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    assert await waiting[1] is publishing.loaded
    await publishing.close()


async def test_a_connected_publisher_gets_each_new_token():
    publishing = Parts().publishing()
    ingest: Any = await publishing.ingest()
    view = await publishing.renewed("s", "whip", base_url="http://h")
    assert view is not None
    assert ingest.refreshed == [("s", view.token)]
    await publishing.close()


async def test_after_the_end_nobody_gets_in():
    parts = Parts()
    publishing = parts.publishing("json")
    ingest: Any = await publishing.ingest()
    await publishing.close()
    assert ingest.is_closed
    assert parts.n_closed == 1
    with pytest.raises(ModelUnavailable, match="stopping"):
        await publishing.ingest()
    assert publishing.loaded is None
    await publishing.close()
    assert parts.n_closed == 1


async def test_what_is_being_made_at_the_end_is_closed_too():
    parts = Parts()
    publishing = parts.publishing("json")
    await publishing.told("s", "livekit", base_url="http://h")
    await publishing.close()
    assert parts.made[-1].is_closed


async def test_an_entrance_that_could_not_be_made_is_tried_again_for_the_next_publisher():
    parts = Parts()
    parts.port_is_taken = True
    publishing = parts.publishing("json")
    for _ in range(2):
        with pytest.raises(SettingsInvalid, match="UDP port"):
            await publishing.ingest()
    parts.port_is_taken = False
    assert await publishing.ingest() is publishing.loaded is not None
    await publishing.close()
    assert parts.n_closed == 1


async def test_a_part_that_cannot_be_imported_is_an_error_for_who_asks():
    publishing = Parts().publishing(RARE_MODULE)
    with pytest.raises(ModuleNotFoundError):
        await publishing.ingest()
    assert publishing.loaded is None
    await publishing.close()
