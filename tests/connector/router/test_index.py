"""The index of known turns, and the choice of engines: pure structures, their invariants and bounds."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.protocol import EngineState, FleetEngine, Role
from connector.router.fleet import EMPTY_SNAPSHOT, Engine, Fleet
from connector.router.health.breaker import Signal
from connector.router.index import HASHES_PER_TURN, MAX_CANDIDATES, KnownTurn, TurnIndex
from connector.router.selection import choose_decode, least_busy
from connector.router.sessions import Sessions


def turn(number: int, chain: str, session: str = "s", is_running: bool = False) -> KnownTurn:
    return KnownTurn(f"t{number}", session, "tenant", number, tuple(chain), is_running=is_running)


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "remove"]), st.text("abc", max_size=4), st.sampled_from("xy")), max_size=40
)


@given(operations=OPERATIONS)
def test_every_turn_is_found_by_each_of_its_prefixes_and_by_nothing_else(
    operations: list[tuple[str, str, str]],
) -> None:
    index, alive = TurnIndex(1000), list[KnownTurn]()
    for number, (what, chain, session) in enumerate(operations):
        if what == "add":
            added = turn(number, "".join(dict.fromkeys(chain)), session)
            index.add(added)
            alive.append(added)
        elif alive:
            index.remove(alive.pop(len(chain) % len(alive)))
    assert len(index) == len(alive)
    for prefix in "abc":
        expected = [t for t in reversed(alive) if prefix in t.chain]
        assert index.sharing(prefix) == expected[:MAX_CANDIDATES]
    for session in "xy":
        assert index.of_session(session) == [t for t in reversed(alive) if t.session_id == session][:MAX_CANDIDATES]


def test_oldest_turn_goes_first_but_never_a_running_one() -> None:
    index = TurnIndex(3)
    first, second, *_ = turns = [turn(0, "a", is_running=True), turn(1, "b"), turn(2, "c")]
    for known in turns:
        assert index.add(known) == []
    assert index.add(turn(3, "d")) == [second]
    assert index.get(first.turn_id) is first
    assert index.sharing("b") == []
    index.touch(turns[2])
    assert [t.turn_id for t in index.add(turn(4, "e"))] == ["t3"]


def test_long_chains_are_bounded_together() -> None:
    index = TurnIndex(10)
    for number in range(10):
        index.add(KnownTurn(f"t{number}", "s", "t", 0, tuple(f"{number}-{i}" for i in range(2 * HASHES_PER_TURN))))
    assert len(index) == 5


def test_crowd_that_shares_a_prefix_costs_no_more_than_its_latest() -> None:
    index = TurnIndex(1000)
    for number in range(500):
        index.add(turn(number, "a"))
    assert [t.index for t in index.sharing("a")] == list(range(499, 499 - MAX_CANDIDATES, -1))


def test_sessions_are_bounded_and_count_on_from_what_leases_tell() -> None:
    sessions = Sessions(2)
    assert [sessions.start_turn("a", f"t{i}", None) for i in range(3)] == [0, 1, 2]
    sessions.observe("b", 7, "t7")
    sessions.observe("b", 5, "t5")
    assert sessions.start_turn("b", "t8", None) == 8
    sessions.start_turn("c", "t9", None)
    assert sessions.last("a") is None
    assert len(sessions) == 2


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


def test_holder_wins_over_load_and_the_least_busy_otherwise() -> None:
    engines = [engine("a", 3), engine("b", 1), engine("c", 2)]
    assert choose_decode(engines, "a") is engines[0]
    for unknown in ("", "gone"):
        assert choose_decode(engines, unknown) is engines[1]
    engines[0].health.fail(Signal.CONNECT)
    assert choose_decode(engines, "a") is engines[1]
    assert choose_decode(engines[:1], "a") is engines[0]
    assert choose_decode([], "a") is None


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
