"""The link wakes an engine that waits between idle steps, for what only a step can do."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from connector.engine.link import EngineLink
from connector.protocol import AgentToEngine, ExtendLease, Ping, PolicyValues, Pong, ReleaseLease, SetPolicy
from tests.connector.engine.link_engine import FakeEngine, connected


@pytest.mark.parametrize(
    ("message", "num_wakes"),
    [
        (ReleaseLease(command_id="c1", key="lease-a"), 1),
        (ExtendLease(command_id="c1", lease_id="lease-b", ttl_seconds=60, pinned=False), 1),
        (SetPolicy(revision=2, values=PolicyValues()), 1),
        (ReleaseLease(command_id="c1", key="lease-gone"), 0),
        (Ping(nonce=5), 0),
    ],
)
def test_what_the_scheduler_has_to_do_wakes_it(
    engine: FakeEngine, path: Path, message: AgentToEngine, num_wakes: int
) -> None:
    wakes: list[bool] = []
    wake: Callable[[], None] = lambda: wakes.append(bool(link._inbox) or engine.policy.revision == 2)  # noqa: E731
    link = EngineLink(path, structs.replace(engine.callbacks(), wake=wake))
    with connected(path) as client:
        client.send(message)
        client.send(Ping(nonce=1))
        while not isinstance(answer := client.receive(msgspec.Struct), Pong) or answer.nonce != 1:
            pass
    assert wakes == [True] * num_wakes, "and what is to be done lies there by then"
    link.close()
