"""Claims without sockets: what is queued, numbered, applied, and given up when."""

import asyncio

import pytest
import redis
from redis.asyncio import Redis

from connector.router.claims import outbox as outbox_module
from connector.router.claims.messages import MAX_CLAIMS, Batch, Claim, TurnDecoding, TurnEnded, TurnStarted
from connector.router.claims.outbox import ClaimOutbox
from connector.router.claims.remote import MAX_ROUTERS, SILENT_SECONDS, RemoteTurns
from connector.router.claims.sharing import ClaimSharing
from connector.router.index import TurnIndex
from connector.router.known import NewTurn
from connector.router.metrics import Metrics
from connector.router.sessions import Sessions
from connector.signing import FleetKey

LIFETIME_SECONDS = 600.0


class Life:
    """Stands for the placer."""

    def __init__(self, index: TurnIndex) -> None:
        self.index = index
        self.ended: list[tuple[str, bool]] = []
        self.expected: list[tuple[str, str]] = []

    def expect_notice(self, turn_id: str, engine: str) -> None:
        self.expected.append((turn_id, engine))

    def finish(self, turn_id: str, served: bool, reply: bytes, num_prompt_tokens: int) -> None:
        self.ended.append((turn_id, served))
        turn = self.index.get(turn_id)
        assert turn is not None
        self.index.remove(turn)


class Listener:
    def __init__(self) -> None:
        self.now = 1000.0
        self.index = TurnIndex(1000)
        self.sessions = Sessions()
        self.life = Life(self.index)
        self.metrics = Metrics()
        self.remote = RemoteTurns(
            self.index, self.sessions, self.life, self.metrics, LIFETIME_SECONDS, clock=lambda: self.now
        )

    def number(self, session_id: str, turn_id: str) -> int:
        """Of a turn of this router."""
        last = self.sessions.last(session_id, self.index.of_session(session_id))
        return self.sessions.start_turn(session_id, turn_id, last, None)

    def hear(self, boot: str, sequence: int, *claims: Claim, is_reset: bool = False) -> None:
        self.remote.take(Batch(boot, sequence, is_reset, False, claims))


def started(turn_id: str, index: int = 0) -> TurnStarted:
    return TurnStarted(turn_id, "s", "t", index, turn_id.encode().ljust(8), b"", "")


@pytest.fixture
def listener() -> Listener:
    return Listener()


def test_turn_lives_from_its_start_to_its_end(listener: Listener) -> None:
    listener.hear("a", 1, started("one"), TurnDecoding("one", "d0"))
    turn = listener.index.get("one")
    assert turn is not None
    assert turn.is_running
    assert listener.life.expected == [("one", "d0")]
    listener.hear("a", 2, TurnEnded("one", True, b"", 7))
    assert listener.life.ended == [("one", True)]
    assert len(listener.remote) == 0


def test_gap_or_reset_ends_what_may_have_ended_unheard(listener: Listener) -> None:
    listener.hear("a", 1, started("one"))
    listener.hear("b", 1, started("other"))
    listener.hear("a", 3, started("two"))
    assert listener.life.ended == [("one", False)]
    listener.hear("a", 4, started("three"), is_reset=True)
    assert listener.life.ended == [("one", False), ("two", False)]
    assert len(listener.remote) == 2


def test_silent_router_is_given_up_unless_this_one_hears_nothing_itself(listener: Listener) -> None:
    listener.hear("a", 1, started("one"))
    listener.now += SILENT_SECONDS
    listener.remote.expire(listening_seconds=0.0)
    listener.remote.expire(listening_seconds=SILENT_SECONDS / 2)
    assert listener.life.ended == []
    listener.hear("a", 2)
    listener.remote.expire(listening_seconds=100.0)
    assert listener.life.ended == []
    listener.now += SILENT_SECONDS
    listener.remote.expire(listening_seconds=100.0)
    assert listener.life.ended == [("one", False)]


def test_claim_runs_out_though_its_router_lives_or_nobody_is_heard(listener: Listener) -> None:
    listener.hear("a", 1, started("one"))
    listener.now += LIFETIME_SECONDS / 2
    listener.hear("a", 2, started("two"))
    listener.now += LIFETIME_SECONDS / 2
    listener.remote.expire(listening_seconds=0.0)
    assert listener.life.ended == [("one", False)]
    listener.hear("a", 3, TurnEnded("one", True, b"", 0))
    assert listener.life.ended == [("one", False)]


def test_one_router_cannot_end_the_turn_of_another(listener: Listener) -> None:
    listener.hear("a", 1, started("one"))
    listener.hear("b", 1, TurnEnded("one", False, b"", 0), TurnDecoding("one", "d9"), started("one"))
    assert listener.life.ended == []
    assert listener.life.expected == []
    assert len(listener.remote) == 1


def test_turn_numbers_go_on_from_another_routers_though_its_turn_left_nothing(listener: Listener) -> None:
    listener.hear("a", 1, started("one", index=4), TurnEnded("one", False, b"", 0))
    assert listener.index.get("one") is None
    assert listener.number("s", "mine") == 5
    listener.hear("a", 2, started("late", index=2))
    assert listener.number("s", "next") == 6


def test_routers_remembered_are_bounded(listener: Listener) -> None:
    for number in range(MAX_ROUTERS + 10):
        listener.hear(f"boot-{number}", 1, started(f"t{number}"))
    assert len(listener.remote._peers) == MAX_ROUTERS
    assert len(listener.remote) == MAX_ROUTERS
    assert listener.life.ended == [(f"t{number}", False) for number in range(10)]


def own(turn_id: str) -> NewTurn:
    return NewTurn(turn_id, "s", "t", 0, b"12345678", is_running=True)


def test_outbox_that_is_off_keeps_nothing() -> None:
    outbox = ClaimOutbox()
    outbox.start(own("a"))
    outbox.decode("a", "d0")
    outbox.end("a", True, b"", 0)
    assert outbox.num_queued == 0


def test_batches_are_numbered_and_bounded() -> None:
    outbox = ClaimOutbox(is_on=True)
    outbox.open()
    for number in range(300):
        outbox.start(own(f"t{number}"))
    batches = [outbox.take()]
    while outbox.num_queued:
        batches.append(outbox.take())
    assert [batch.sequence for batch in batches] == list(range(1, len(batches) + 1))
    assert [batch.is_reset for batch in batches] == [True, *[False] * (len(batches) - 1)]
    assert sum(len(batch.claims) for batch in batches) == 300
    assert max(len(batch.claims) for batch in batches) <= MAX_CLAIMS
    assert outbox.take().claims == ()


def test_what_runs_is_told_anew_when_the_way_is_open_again() -> None:
    outbox = ClaimOutbox(is_on=True)
    outbox.open()
    outbox.take()
    outbox.start(own("old"))
    outbox.shut()
    outbox.start(own("new"))
    outbox.decode("new", "d0")
    outbox.end("old", True, b"", 0)
    assert outbox.num_queued == 0
    outbox.open()
    batch = outbox.take()
    assert batch.is_reset
    assert batch.claims == (TurnStarted.of(own("new")), TurnDecoding("new", "d0"))


def test_queue_that_overflows_is_dropped_and_what_runs_is_told_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "MAX_QUEUED", 10)
    outbox = ClaimOutbox(is_on=True)
    outbox.open()
    outbox.take()
    for number in range(6):
        outbox.start(own(f"t{number}"))
        outbox.end(f"t{number}", True, b"", 0)
    assert outbox.num_queued <= 10
    assert outbox.num_lost == 10
    batch = outbox.take()
    assert batch.is_reset
    assert [claim.turn_id for claim in batch.claims] == ["t5", "t5"]


async def test_cancellation_that_the_client_swallows_still_ends_the_sharing(listener: Listener) -> None:
    key = FleetKey({"k1": bytes(32)})
    sharing = ClaimSharing("redis://127.0.0.1:1/0", key, ClaimOutbox(), listener.remote, listener.metrics)
    is_working = asyncio.Event()

    async def deaf(client: Redis) -> None:
        is_working.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise redis.ConnectionError from None

    task = asyncio.create_task(sharing._keep("in", deaf))
    await is_working.wait()
    task.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await task
