"""Several routers and restarts: what one of them served, another one reuses, from what the agents' feeds tell."""

from collections.abc import AsyncIterator
from itertools import permutations
from pathlib import Path

import msgspec
import pytest

from connector.protocol import Decision, FleetEngine, Role
from connector.router.app import Router
from connector.router.assembly import Parts
from connector.router.chain import pack_chain
from connector.router.fleet import EMPTY_SNAPSHOT, Fleet
from connector.router.index import TurnIndex
from connector.router.known import HeldLease, NewTurn
from connector.router.matching import Matcher, Prompt
from tests.connector.router.conftest import Scene, assistant, user
from tests.connector.router.waiting import eventually


class Pair:
    """Two routers before the same engines; the scene's client talks to the one in front."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.routers: list[tuple[Router, Parts]] = []

    async def start(self, tmp_path: Path) -> None:
        for number in range(2):
            await self.scene.start_router(router_name=f"router-{number}", state_dir=tmp_path / f"state-{number}")
            self.routers.append((self.scene.router, self.scene.live))  # type: ignore[arg-type]

    def put_in_front(self, number: int) -> None:
        self.scene.router, self.scene.parts = self.routers[number]

    async def until_both_know(self, turn_id: str) -> None:
        for _, parts in self.routers:
            await eventually(lambda p=parts: has_lease(p, turn_id), "both routers know the lease")  # type: ignore[misc]

    async def close(self) -> None:
        for router, _ in self.routers:
            if router is not self.scene.router:
                await router.stop()


def has_lease(parts: Parts, turn_id: str) -> bool:
    turn = parts.index.get(turn_id)
    return turn is not None and turn.has_lease


@pytest.fixture
async def pair(still_scene: Scene, tmp_path: Path) -> AsyncIterator[Pair]:
    made = Pair(still_scene)
    try:
        await made.start(tmp_path)
        yield made
    finally:
        await made.close()


@pytest.mark.parametrize("key", [{}, {"conversation_id": "c"}], ids=["without a key", "keyed"])
async def test_turns_of_one_conversation_reuse_whichever_router_takes_them(pair: Pair, key: dict[str, str]) -> None:
    scene, messages, sessions = pair.scene, [user("hi")], []
    for number in range(6):
        pair.put_in_front(number % 2)
        await scene.chat(messages, **key)
        envelope = scene.decode.received[-1].envelope
        assert envelope is not None
        assert (scene.prefill.received[-1].offer is not None) is (number > 0)
        assert envelope.chain[0] == f"#{number}", "turns are counted on"
        sessions.append(envelope.session_id)
        await pair.until_both_know(envelope.turn_id)
        messages += [assistant("Hello you"), user(f"and {number}")]
    assert len(set(sessions)) == 1


async def test_first_turn_after_a_restart_reuses_though_the_control_plane_is_gone(scene: Scene) -> None:
    await scene.chat([user("hi")])
    await scene.until_leased(1)
    await eventually(lambda: list(scene.state_dir.rglob("fleet.json")), "the fleet is on disk")
    await scene.stop_router()
    await scene.control.stop()
    await scene.start_router()
    await scene.chat([user("hi"), assistant("Hello you"), user("again")])
    assert scene.prefill.received[-1].offer is not None


MATCHES = {"e1": 4, "e2": 32, "e3": 8}


@pytest.mark.parametrize("order", list(permutations(MATCHES)))
@pytest.mark.parametrize("unlisted", ["", "e2"])
def test_longest_match_wins_in_any_order_and_engines_that_are_not_listed_never(
    order: tuple[str, ...], unlisted: str
) -> None:
    """Field report 53 (vllm-project/production-stack#1055, #1061); all engines have one address."""
    index, fleet = TurnIndex(100), Fleet()
    listed = [facts(name) for name in MATCHES if name != unlisted]
    fleet.apply(msgspec.structs.replace(EMPTY_SNAPSHOT, engines=tuple(listed)))
    chain = [f"{number:08x}" * 3 for number in range(1, 40)]
    for name in order:
        branch = [*chain[: MATCHES[name]], f"{ord(name[1]):08x}" * 3]
        turn = index.add(NewTurn(f"turn-{name}", f"session-{name}", "t", 0, pack_chain(branch)))
        index.hold(turn, HeldLease(f"lease-{name}", name, "1", f"offer-{name}", float("inf"), 16))
    match = Matcher(index, fleet).match(Prompt("t", "", pack_chain(chain)))
    assert match.source is not None
    lease = match.source.lease
    assert lease is not None
    expected = "e3" if unlisted else "e2"
    assert (lease.engine, lease.offer, match.num_common) == (expected, f"offer-{expected}", MATCHES[expected])
    assert match.lost is (Decision.SOURCE_LOST if unlisted else None)


def facts(name: str) -> FleetEngine:
    return FleetEngine(
        name=name,
        role=Role.DECODE,
        model="tiny",
        state="ready",
        draining=False,
        engine_url="http://127.0.0.1:8200",
        feed_url="",
        incarnation="1",
    )
