"""The index of known turns, and the choice of engines: pure structures, their invariants and bounds."""

import hashlib

import msgspec
import pytest

from connector.protocol import Decision, EngineState, FleetEngine, Role
from connector.router.chain import PACKED_BYTES
from connector.router.choice.chooser import least_busy
from connector.router.fleet import EMPTY_SNAPSHOT, Engine, Fleet
from connector.router.index import TurnIndex
from connector.router.known import HeldLease, KnownTurn, NewTurn
from connector.router.prefixes import MAX_CANDIDATES
from connector.router.sessions import Sessions, SessionState, SpanRef

HASH = PACKED_BYTES


def packed(chain: str) -> bytes:
    """One hash per letter, as if each letter were a message: equal prefixes give equal hashes."""
    return b"".join(hashlib.blake2b(chain[: i + 1].encode(), digest_size=HASH).digest() for i in range(len(chain)))


def turn(number: int, chain: str, session: str = "s", tenant: str = "t", is_running: bool = False) -> NewTurn:
    return NewTurn(f"t{number}", session, tenant, number, packed(chain), is_running)


def lease(number: int, num_tokens: int = 100, deadline: float = 1e9, size: int = 40) -> HeldLease:
    return HeldLease(f"l{number}", "d0", "d0-1", f"k1.{'o' * size}.{number}", deadline, num_tokens)


def ids(turns: list[KnownTurn]) -> list[str]:
    return [known.turn_id for known in turns]


def test_oldest_turn_without_a_lease_goes_first_but_never_a_running_one() -> None:
    clock = Clock()
    index = TurnIndex(3, clock=clock)
    index.add(turn(0, "a", is_running=True))
    for number, chain in enumerate("bc", start=1):
        clock.now += 1
        index.add(turn(number, chain))
    clock.now += 1
    index.add(turn(3, "d"))
    assert [index.get(f"t{number}") is not None for number in range(4)] == [True, False, True, True]
    assert index.shares(packed("b")) == []
    held = index.get("t2")
    assert held is not None
    index.touch(held)
    clock.now += 1
    index.add(turn(4, "e"))
    assert index.get("t3") is None
    assert index.get("t2") == held


def test_what_gives_way_is_what_a_return_would_save_least_by() -> None:
    """Tokens times the chance of a return before the lease ends, not the time of the last use."""
    clock = Clock()
    index = TurnIndex(4, clock=clock)
    for number, (num_tokens, remaining) in enumerate([(100_000, 400.0), (50, 400.0), (100_000, 6.0), (9_000, 400.0)]):
        clock.now += 1
        index.hold(index.add(turn(number, f"{number}")), lease(number, num_tokens, clock.now + remaining))
    clock.now += 5.5
    for number in (4, 5):
        index.hold(index.add(turn(number, f"{number}")), lease(number, 70_000, clock.now + 400.0))
    left = [number for number in range(6) if index.get(f"t{number}")]
    assert left == [0, 3, 4, 5], "few tokens and little time left go first"
    assert index.num_evicted == 2


def test_returns_teach_which_leases_are_worth_keeping() -> None:
    """Where everybody who comes back does so within a minute, a large lease that was idle for longer gives way."""
    clock = Clock()
    index = TurnIndex(3, clock=clock)
    known = index.add(turn(0, "a", is_running=True))
    for _ in range(1000):
        clock.now += 40
        index.touch(known)
    for number in range(1, 1001):
        left = index.add(turn(number, f"{number}"))
        index.hold(left, lease(number, 100, clock.now + 900))
        clock.now += 900
        index.release(left, Decision.EXPIRED)
        index.remove(left)
    index.hold(index.add(turn(2001, "old")), lease(2001, 9_000, clock.now + 900))
    clock.now += 120
    for number in (2002, 2003):
        index.hold(index.add(turn(number, f"new {number}")), lease(number, 1_000, clock.now + 900))
    assert [index.get(f"t{number}") is not None for number in (0, 2001, 2002, 2003)] == [True, False, True, True]


def test_bytes_are_bounded_as_well_as_turns() -> None:
    index = TurnIndex(1000, max_bytes=100_000)
    for number in range(40):
        index.hold(index.add(turn(number, f"{number}")), lease(number, size=10_000))
        assert index.num_bytes <= 100_000
    assert 5 <= len(index) <= 10


def test_crowd_that_shares_a_prefix_costs_no_more_than_its_latest() -> None:
    index = TurnIndex(1000)
    for number in range(500):
        index.add(turn(number, f"a{number}"))
    share = index.shares(packed("a"))[0]
    assert [known.index for known in index.sharing(share)] == list(range(499, 499 - MAX_CANDIDATES, -1))


def test_session_of_very_many_turns_shows_its_latest() -> None:
    index = TurnIndex(1000)
    for number in range(500):
        index.add(turn(number, f"{number}"))
    assert [known.index for known in index.of_session("s")] == list(range(499, 499 - MAX_CANDIDATES, -1))


@pytest.mark.parametrize("max_turns", [200, 50])
def test_flooding_tenant_cannot_evict_anothers_turns(max_turns: int) -> None:
    index, share = TurnIndex(max_turns), max_turns // 4
    for tenant in ("quiet", "calm"):
        for number in range(share):
            index.hold(index.add(turn(number, f"{tenant}{number}", tenant, tenant)), lease(number, 1))
    for number in range(20 * max_turns):
        index.hold(index.add(turn(1000 + number, f"x{number}", "f", "flood")), lease(1000 + number, 100_000))
    kept = [sum(bool(known.tenant == tenant) for known in all_turns(index)) for tenant in ("quiet", "calm", "flood")]
    assert kept == [share, share, max_turns - 2 * share]


def test_tenant_over_its_share_loses_its_least_beneficial_though_there_is_room() -> None:
    index = TurnIndex(1000, tenant_share=0.01)
    for number in range(11):
        index.hold(index.add(turn(number, f"{number}", "s", "a")), lease(number, 100 - number if number else 1))
    assert len(index) == 10
    assert index.get("t0") is None
    index.add(turn(99, "b", "s", "b"))
    assert len(index) == 11


def test_prompt_whose_lease_gave_way_is_told_so_and_no_other() -> None:
    index = TurnIndex(2)
    for number, chain in enumerate(("ab", "cd", "ef")):
        index.hold(index.add(turn(number, chain)), lease(number, 10 * number + 1))
    assert index.was_forgotten(packed("abx"))
    assert not index.was_forgotten(packed("cdx"))
    assert not index.was_forgotten(packed("xyz"))


def test_sessions_are_bounded_and_count_on_from_what_leases_tell() -> None:
    index, sessions = TurnIndex(100), Sessions(2)

    def start(session_id: str, turn_id: str, span: SpanRef | None = None) -> int:
        last = sessions.last(session_id, index.of_session(session_id))
        return sessions.start_turn(session_id, turn_id, last, span)

    assert [start("a", f"t{i}") for i in range(3)] == [0, 1, 2]
    index.add(turn(5, "x", "b"))
    index.add(turn(7, "y", "b"))
    assert start("b", "t8", SpanRef(3, 4)) == 8
    assert sessions.last("b", index.of_session("b")) == SessionState(8, "t8", SpanRef(3, 4))
    start("c", "t9")
    assert sessions.last("a", []) is None
    assert len(sessions) == 2


def all_turns(index: TurnIndex) -> list[KnownTurn]:
    return [KnownTurn(index, slot) for slot, tenant in enumerate(index.rows.tenant) if tenant]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def engine(name: str, num_active: int = 0, **facts: object) -> Engine:
    given = {
        "name": name,
        "role": Role.DECODE,
        "model": "tiny",
        "state": "ready",
        "draining": False,
        "engine_url": "http://127.0.0.1:1",
        "feed_url": "",
        "incarnation": "1",
    }
    made = Engine(FleetEngine(**(given | facts)))  # type: ignore[arg-type]
    made.num_active = num_active
    return made


def test_idle_engines_take_turns() -> None:
    engines = [engine("a"), engine("b")]
    picked = []
    for _ in range(4):
        chosen = least_busy(engines)
        assert chosen is not None
        chosen.begin_leg()
        chosen.end_leg()
        picked.append(chosen.name)
    assert sorted(picked[:2]) == sorted(picked[2:]) == ["a", "b"]


@pytest.mark.parametrize(
    ("state", "feed", "is_up"),
    [
        ("ready", None, True),
        ("silent", None, True),
        ("down", None, False),
        ("stalled", None, False),
        ("pending", None, False),
        ("pending", EngineState.READY, False),
        ("down", EngineState.READY, True),
        ("ready", EngineState.STALLED, False),
        ("ready", EngineState.DOWN, False),
    ],
)
def test_feed_is_fresher_than_the_control_plane(state: str, feed: EngineState | None, is_up: bool) -> None:
    known = engine("a", state=state)
    known.feed_state = feed
    assert known.is_up is is_up


@pytest.mark.parametrize("url", ["", "nonsense", "http://", "http://host:99999999"])
def test_engine_without_a_usable_address_takes_no_turns(url: str) -> None:
    assert not engine("a", engine_url=url).takes_turns


@pytest.mark.parametrize("url", ["http://[::1]:8100", "http://127.0.0.1:8100/", "https://d0.example/prefix"])
def test_engine_addresses_of_every_form_are_kept(url: str) -> None:
    known = engine("a", engine_url=url)
    assert known.takes_turns
    assert str(known.url("/v1/models")) == url.rstrip("/") + "/v1/models"


def test_engine_that_moves_keeps_its_counters_and_gets_its_new_address() -> None:
    fleet = Fleet()
    first = engine("a")
    fleet.apply(msgspec.structs.replace(EMPTY_SNAPSHOT, engines=(first.facts,)))
    known = fleet.get("a")
    assert known is not None
    known.num_active = 2
    known.url("/x")
    moved = engine("a", engine_url="http://127.0.0.1:2").facts
    fleet.apply(msgspec.structs.replace(EMPTY_SNAPSHOT, engines=(moved,)))
    assert fleet.get("a") is known
    assert (known.num_active, known.url("/x").port) == (2, 2)
