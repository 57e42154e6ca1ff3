"""Index and lease book under any order of turns, notices, snapshots and restarts, against a naive model."""

import asyncio
import hashlib
import math
from functools import cache

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from connector.protocol import (
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LeaseKind,
    LeaseOffer,
    LeaseRenewed,
    LeaseState,
)
from connector.router.chain import HASH_BYTES, MAX_CHAIN, mark_turn, pack_chain, thin
from connector.router.index import TurnIndex
from connector.router.known import NewTurn
from connector.router.leases import LeaseBook
from connector.router.prefixes import MAX_CANDIDATES

TENANTS, SESSIONS, ENGINES = ["red", "blue"], ["s1", "s2", "s3"], ["d0", "d1"]

CHAINS = st.one_of(
    st.text("ab", min_size=1, max_size=6),
    st.builds(
        lambda n, tail: "c" * n + tail,
        st.sampled_from([MAX_CHAIN - 1, MAX_CHAIN, MAX_CHAIN + 1, MAX_CHAIN + 40]),
        st.text("ab", max_size=2),
    ),
)


@cache
def hashes(tenant: str, letters: str) -> tuple[str, ...]:
    """As the hasher makes them: each covers the tenant and everything before it."""
    texts = (f"{tenant}|{letters[: i + 1]}".encode() for i in range(len(letters)))
    return tuple(hashlib.blake2b(text, digest_size=HASH_BYTES).hexdigest() for text in texts)


class Known:
    """What the model knows of a turn that it started or saw granted."""

    def __init__(self, tenant: str, session: str, letters: str, order: int) -> None:
        self.tenant, self.session, self.letters, self.order = tenant, session, letters, order
        self.is_running = False
        self.lease: tuple[str, str] | None = None
        """Engine and offer."""

        self.kept = frozenset(thin(hashes(tenant, letters)))


class IndexMachine(RuleBasedStateMachine):
    max_turns = 10_000
    max_fresh = 3
    """So that most records are packed."""

    @initialize()
    def start(self) -> None:
        self.index = TurnIndex(self.max_turns, max_fresh=self.max_fresh)
        self.book = LeaseBook(self.index, lambda *_: None)
        self.turns: dict[str, Known] = {}
        self.num_offers = 0

    def new(self, tenant: str, session: str, letters: str) -> str:
        turn_id = f"turn-{len(self.turns):04}"
        self.turns[turn_id] = Known(tenant, session, letters, len(self.turns))
        return turn_id

    def offer(self, turn_id: str, pinned: bool = False) -> LeaseOffer:
        known, self.num_offers = self.turns[turn_id], self.num_offers + 1
        lease = LeaseGranted(
            lease_id=f"lease-{turn_id}",
            kind=LeaseKind.SESSION,
            session_id=known.session,
            turn_id=turn_id,
            tenant=known.tenant,
            num_tokens=16 * len(known.letters),
            num_blocks=1,
            num_bytes=1,
            remaining_seconds=100.0,
            pinned=pinned,
        )
        chain = mark_turn(known.order, thin(hashes(known.tenant, known.letters)))
        return LeaseOffer(lease=lease, offer=f"offer {self.num_offers}", chain=chain)

    def pick(self, number: int, wanted: str) -> str | None:
        """One of the turns that are running, leased or neither."""
        state = {"running": lambda t: t.is_running, "leased": lambda t: t.lease, "any": lambda t: True}[wanted]
        fitting = [turn_id for turn_id, turn in self.turns.items() if state(turn)]
        return fitting[number % len(fitting)] if fitting else None

    # ------------------------------------------------ what happens

    @rule(tenant=st.sampled_from(TENANTS), session=st.sampled_from(SESSIONS), letters=CHAINS)
    def start_turn(self, tenant: str, session: str, letters: str) -> None:
        turn_id = self.new(tenant, session, letters)
        chain = pack_chain(thin(hashes(tenant, letters)))
        self.index.add(NewTurn(turn_id, session, tenant, self.turns[turn_id].order, chain, is_running=True))
        self.turns[turn_id].is_running = True

    @rule(number=st.integers(0, 99), is_served=st.booleans(), is_awaited=st.booleans())
    def end_turn(self, number: int, is_served: bool, is_awaited: bool) -> None:
        turn_id = self.pick(number, "running")
        if turn_id is None:
            return
        self.turns[turn_id].is_running = False
        turn = self.index.get(turn_id)
        assert turn is not None, "a running turn never goes"
        assert turn.live is not None
        turn.live.is_running = False
        if is_served and is_awaited and not turn.has_lease:
            turn.live.notice.expect()
        if is_served or turn.has_lease:
            self.index.rest(turn.slot)
            self.book.tidy(turn)
        else:
            self.index.remove(turn)

    @rule(number=st.integers(0, 99), engine=st.sampled_from(ENGINES), pinned=st.booleans())
    def grant(self, number: int, engine: str, pinned: bool) -> None:
        turn_id = self.pick(number, "any")
        if turn_id is None or (self.turns[turn_id].lease or (engine,))[0] != engine:
            return
        offer = self.offer(turn_id, pinned)
        self.book.grant(engine, f"{engine}-1", offer)
        self.turns[turn_id].lease = engine, offer.offer

    @rule(
        tenant=st.sampled_from(TENANTS),
        session=st.sampled_from(SESSIONS),
        letters=CHAINS,
        engine=st.sampled_from(ENGINES),
    )
    def grant_of_another_router(self, tenant: str, session: str, letters: str, engine: str) -> None:
        offer = self.offer(self.new(tenant, session, letters))
        self.book.grant(engine, f"{engine}-1", offer)
        self.turns[offer.lease.turn_id].lease = engine, offer.offer

    @rule(number=st.integers(0, 99), pinned=st.booleans())
    def renew(self, number: int, pinned: bool) -> None:
        turn_id = self.pick(number, "leased")
        if turn_id is None or (lease := self.turns[turn_id].lease) is None:
            return
        change = LeaseExtended(lease_id=f"lease-{turn_id}", remaining_seconds=7.0, pinned=pinned)
        self.book.renew(lease[0], LeaseRenewed(lease=change, offer=f"again {turn_id}"))
        self.turns[turn_id].lease = lease[0], f"again {turn_id}"
        turn = self.index.get(turn_id)
        if turn is not None and turn.has_lease:
            assert math.isinf(turn.deadline) is pinned

    @rule(number=st.integers(0, 99), state=st.sampled_from(list(LeaseState)))
    def end_lease(self, number: int, state: LeaseState) -> None:
        turn_id = self.pick(number, "leased")
        if turn_id is None or (lease := self.turns[turn_id].lease) is None:
            return
        self.book.end(lease[0], LeaseEnded(lease_id=f"lease-{turn_id}", state=state, reason="test"))
        self.turns[turn_id].lease = None

    @rule(engine=st.sampled_from(ENGINES), keeps=st.integers(0, 1 << 16), restarts=st.booleans())
    def reconnect(self, engine: str, keeps: int, restarts: bool) -> None:
        """A snapshot with some of the leases, or of a new incarnation that has none."""
        held = [turn_id for turn_id, turn in self.turns.items() if turn.lease and turn.lease[0] == engine]
        kept = [] if restarts else [turn_id for number, turn_id in enumerate(held) if keeps >> number % 17 & 1]
        offers = [self.offer(turn_id) for turn_id in reversed(kept)]
        if restarts:
            self.book.drop_engine(engine, keep_incarnation=f"{engine}-2")
        asyncio.run(self.book.replace_engine(engine, f"{engine}-1", offers))
        for turn_id in held:
            self.turns[turn_id].lease = None
        for offer in offers:
            self.turns[offer.lease.turn_id].lease = engine, offer.offer

    @precondition(lambda self: len(self.index))
    @rule(number=st.integers(0, 99))
    def come_back(self, number: int) -> None:
        turn_id = self.pick(number, "any")
        turn = self.index.get(turn_id) if turn_id else None
        if turn is not None:
            self.index.touch(turn)

    # ------------------------------------------------ what must hold

    def alive(self) -> dict[str, Known]:
        return {turn_id: known for turn_id, known in self.turns.items() if self.index.get(turn_id)}

    @invariant()
    def each_turn_is_as_the_model_has_it(self) -> None:
        alive = self.alive()
        assert len(self.index) == len(alive)
        assert len(self.book) == sum(known.lease is not None for known in alive.values())
        for turn_id, known in alive.items():
            turn = self.index.get(turn_id)
            assert turn is not None
            assert (turn.turn_id, turn.session_id, turn.tenant) == (turn_id, known.session, known.tenant)
            assert turn.is_running is known.is_running
            assert turn.tail == pack_chain(hashes(known.tenant, known.letters))[-8:]
            lease = turn.lease
            assert (lease and (lease.engine, lease.offer)) == known.lease
            if lease is not None:
                assert self.index.holding(lease.engine, lease.lease_id) == turn

    @invariant()
    def running_turns_stay(self) -> None:
        alive = self.alive()
        for turn_id, known in self.turns.items():
            assert turn_id in alive or not known.is_running

    @invariant()
    def every_prefix_finds_who_has_it_and_nobody_else(self) -> None:
        alive = sorted(self.alive().items(), key=lambda item: -self.order_of(item[0]))
        for tenant, letters in {(known.tenant, known.letters) for known in self.turns.values()}:
            chain = hashes(tenant, letters + "z")
            found: dict[int, set[str]] = {}
            for share in self.index.shares(pack_chain(chain)):
                sharing = [turn.turn_id for turn in self.index.sharing(share)]
                expected = [i for i, known in alive if chain[share.num_hashes - 1] in known.kept]
                assert set(sharing) <= set(expected)
                if not self.index.tree.num_thinned:
                    assert sharing == expected[:MAX_CANDIDATES]
                found.setdefault(share.num_hashes, set()).update(sharing)
                prefix = (tenant, letters[: share.num_hashes])
                whole = [i for i, known in alive if (known.tenant, known.letters) == prefix]
                if share.is_whole:
                    assert {turn.turn_id for turn in self.index.whole(share)} == set(whole)
            longest = {}
            for turn_id, known in alive:
                places = [place for place, one in enumerate(chain, start=1) if one in known.kept]
                if places:
                    longest[turn_id] = max(places)
            for turn_id, place in longest.items():
                assert any(turn_id in who for at, who in found.items() if at >= place), (turn_id, place, found)

    def order_of(self, turn_id: str) -> int:
        turn = self.index.get(turn_id)
        assert turn is not None
        return self.index.tree._turn_stamp[turn.slot]

    @invariant()
    def sessions_show_their_turns_latest_first(self) -> None:
        alive = self.alive()
        for session in SESSIONS:
            mine = sorted((i for i in alive if alive[i].session == session), key=self.order_of, reverse=True)
            assert [turn.turn_id for turn in self.index.of_session(session)] == mine[:MAX_CANDIDATES]

    def teardown(self) -> None:
        """All memory comes back when all turns are removed."""
        if not hasattr(self, "index"):
            return
        for turn_id in self.alive():
            turn = self.index.get(turn_id)
            assert turn is not None
            self.index.remove(turn)
        index, tree = self.index, self.index.tree
        tables = (index._by_turn, index._by_lease, index._sessions.heads, tree._nodes)
        assert [table.num_entries for table in tables] == [0, 0, 0, 0]
        assert (len(index), index.num_bytes, index.num_held(), len(index.live)) == (0, 0, 0, 0)
        assert (tree.num_nodes, tree.num_hashes(), tree.num_thinned) == (0, 0, 0)
        assert (index.records.num_fresh, index.records.num_packed, len(index._tenants)) == (0, 0, 0)
        assert index.records._packers == {}
        assert [len(names) for names in (index._tenant_names, index._engine_names, index._holders)] == [0, 0, 0]


class FullIndexMachine(IndexMachine):
    """With room for a few: what gives way is never a running turn, and what stays is still found."""

    max_turns = 5

    @invariant()
    def bound_holds_but_for_running_turns(self) -> None:
        """Turns that aren't running are no more than there is room for, even where a busy tenant can't give way."""
        num_running = sum(known.is_running for known in self.turns.values())
        assert len(self.index) - num_running <= self.max_turns


STEPS = settings(derandomize=True, deadline=None, max_examples=25, stateful_step_count=25)

TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = STEPS
TestFullIndexMachine = FullIndexMachine.TestCase
TestFullIndexMachine.settings = STEPS
