"""The guard ends work when the client leaves, and only then."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect

from liveedge.api.disconnect import DisconnectGuard


class Client:
    """The receiving side of a connection."""

    def __init__(self):
        self._left = asyncio.Event()

    def leave(self):
        self._left.set()

    async def receive(self):
        await self._left.wait()
        return {"type": "http.disconnect"}


async def for_ever():
    await asyncio.Event().wait()


async def test_leaving_ends_the_work_as_a_disconnect():
    client, cleaned = Client(), []

    async def work():
        async with DisconnectGuard(client.receive):
            try:
                await for_ever()
            finally:
                await asyncio.sleep(0)  # clean-up may wait: it is cancelled once, not for ever
                cleaned.append(True)

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    client.leave()
    with pytest.raises(ClientDisconnect):
        await task
    assert cleaned == [True]


async def test_work_that_ends_by_itself_leaves_no_watcher():
    before = asyncio.all_tasks()
    async with DisconnectGuard(Client().receive):
        pass
    assert asyncio.all_tasks() == before


async def test_errors_of_the_work_pass_unchanged():
    with pytest.raises(KeyError):
        async with DisconnectGuard(Client().receive):
            raise KeyError


async def test_the_servers_own_cancellation_stays_one():
    async def work():
        async with DisconnectGuard(Client().receive):
            await for_ever()

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_servers_cancellation_wins_over_a_client_that_leaves_too():
    client = Client()

    async def work():
        async with DisconnectGuard(client.receive):
            try:
                await for_ever()
            finally:
                task.cancel()  # the server stops while the work is being ended for the client

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    client.leave()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_leaving_in_the_moment_of_the_end_is_no_error():
    client = Client()
    async with DisconnectGuard(client.receive):
        await asyncio.sleep(0)
        client.leave()
    await asyncio.sleep(0)  # no cancellation is left behind


async def test_after_the_release_leaving_is_nobodys_business():
    client = Client()
    async with DisconnectGuard(client.receive) as guard:
        await asyncio.sleep(0)
        guard.release()
        client.leave()
        for _ in range(5):
            await asyncio.sleep(0)
