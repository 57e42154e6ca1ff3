"""Dashboards are told after the commit, once per transaction, and not at all after a rollback."""

import asyncio
from typing import Any

import pytest
from channels.layers import get_channel_layer
from django.db import transaction

from controlplane.notify import DASHBOARD_GROUP, MAX_IDS_PER_MESSAGE, changed
from tests.controlplane.database import ask

pytestmark = pytest.mark.django_db(transaction=True)


class Listener:
    def __init__(self, layer: Any, channel: str) -> None:
        self._layer, self._channel = layer, channel

    async def next(self) -> Any:
        async with asyncio.timeout(5):
            return await self._layer.receive(self._channel)


@pytest.fixture
async def listener(transactional_db: None) -> Any:
    layer = get_channel_layer()
    channel = await layer.new_channel()
    await layer.group_add(DASHBOARD_GROUP, channel)
    yield Listener(layer, channel)
    await layer.group_discard(DASHBOARD_GROUP, channel)


async def test_changes_of_one_transaction_are_told_together(listener: Listener) -> None:
    @transaction.atomic
    def work() -> None:
        changed("turn", ["a", "b"])
        changed("engine", ["x"])
        changed("turn", ["b", "c"])

    await ask(work)
    told = [await listener.next(), await listener.next()]
    assert told == [
        {"type": "dashboard.changed", "kind": "turn", "ids": ["a", "b", "c"]},
        {"type": "dashboard.changed", "kind": "engine", "ids": ["x"]},
    ]


async def test_rolled_back_changes_are_not_told(listener: Listener) -> None:
    @transaction.atomic
    def fail() -> None:
        changed("turn", ["lost"])
        raise RuntimeError

    def work() -> None:
        with pytest.raises(RuntimeError):
            fail()
        with transaction.atomic():
            with pytest.raises(RuntimeError):
                fail()
            changed("turn", ["kept"])

    await ask(work)
    assert (await listener.next())["ids"] == ["kept"]


async def test_many_ids_are_told_in_bounded_messages(listener: Listener) -> None:
    await ask(lambda: changed("transfer", range(MAX_IDS_PER_MESSAGE + 1)))
    assert [len((await listener.next())["ids"]) for _ in range(2)] == [MAX_IDS_PER_MESSAGE, 1]


def test_unknown_kind_is_a_fault_of_the_caller() -> None:
    with pytest.raises(ValueError, match="weather"):
        changed("weather", ["sunny"])
