"""Index of known turns by the prefixes of their prompts; bounded, least expected benefit out first."""

import time
from collections import Counter
from collections.abc import Callable, Iterator

from connector.protocol import Decision
from connector.router.awaiting import Notice
from connector.router.chain import PACKED_BYTES
from connector.router.directory import Directory
from connector.router.known import HeldLease, KnownTurn, Live, NewTurn
from connector.router.names import Names
from connector.router.prefixes import MAX_CANDIDATES, PrefixTree, Share
from connector.router.quota import Forgotten, Tenants
from connector.router.records import MAX_FRESH, Record, Records
from connector.router.returning import Returning
from connector.router.rows import ROW_BYTES, Rows
from connector.router.sessionturns import SessionTurns

MAX_EVICTED_AT_ONCE = 64
"""Turns that one addition may push out: the work of an addition is bounded, and the next one goes on with it."""

_DECISIONS = tuple(Decision)


class TurnIndex:
    """Finds the turns that share a prefix. Every method is synchronous and O(length of a chain) at most."""

    def __init__(
        self,
        max_turns: int,
        max_bytes: int = 1 << 30,
        tenant_share: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        max_fresh: int = MAX_FRESH,
    ) -> None:
        """``tenant_share``: of turns and bytes, that one tenant may hold at most. ``max_fresh``: see ``records``."""
        self.max_turns, self.max_bytes, self.tenant_share = max_turns, max_bytes, tenant_share
        self.rows = Rows()
        self.records = Records(self._grow, max_fresh)
        self.tree = PrefixTree()
        self.live: dict[int, Live] = {}
        self.num_bytes = 0
        self.num_evicted = 0
        self._clock = clock
        self._by_turn, self._by_lease = Directory[str](), Directory[str]()
        self._sessions = SessionTurns(self.rows, self.records)
        self._tenant_names, self._engine_names = Names[str](), Names[str]()
        self._holders = Names[tuple[str, str]]()
        self._num_by_engine: Counter[str] = Counter()
        self._tenants = Tenants(self.rows.place)
        self._forgotten = Forgotten()
        self._returning = Returning()

    def __len__(self) -> int:
        return self.rows.num_taken

    # ------------------------------------------------ finding

    def get(self, turn_id: str) -> KnownTurn | None:
        for slot in self._by_turn.find(turn_id):
            if self.records.get(slot).turn_id == turn_id:
                return KnownTurn(self, slot)
        return None

    def holding(self, engine: str, lease_id: str) -> KnownTurn | None:
        """The turn whose lease this is."""
        for slot in self._by_lease.find(_lease_key(engine, lease_id)):
            if self.records.get(slot).lease_id == lease_id and self.holder_of(slot)[0] == engine:
                return KnownTurn(self, slot)
        return None

    def shares(self, chain: bytes) -> list[Share]:
        """What known prompts have in common with this one, the longest first."""
        return self.tree.shares(chain)

    def sharing(self, share: Share) -> list[KnownTurn]:
        """Turns whose prompts begin with the prefix, the latest first, at most ``MAX_CANDIDATES``."""
        return [KnownTurn(self, slot) for slot in self.tree.latest(share.node)]

    def whole(self, share: Share) -> list[KnownTurn]:
        """Turns whose whole prompt is the prefix, the latest first, at most ``MAX_CANDIDATES``."""
        return [KnownTurn(self, slot) for slot in self.tree.ending_at(share.node)] if share.is_whole else []

    def of_session(self, session_id: str) -> list[KnownTurn]:
        """The session's turns, the latest first, at most ``MAX_CANDIDATES``."""
        return [KnownTurn(self, slot) for slot in self._sessions.latest(session_id, MAX_CANDIDATES)]

    def was_forgotten(self, chain: bytes) -> bool:
        """Whether a turn that this prompt extends had to give way to others while its lease lived."""
        return self._forgotten.has_any(chain, PACKED_BYTES)

    # ------------------------------------------------ one turn's facts

    def tenant_of(self, slot: int) -> str:
        return self._tenant_names.name(self.rows.tenant[slot]) or ""

    def engine_of(self, slot: int) -> str:
        return self._engine_names.name(self.rows.made_by[slot]) or ""

    def holder_of(self, slot: int) -> tuple[str, str]:
        return self._holders.name(self.rows.holding[slot]) or ("", "")

    def ended_of(self, slot: int) -> Decision | None:
        number = self.rows.ended[slot]
        return _DECISIONS[number - 1] if number else None

    def lease_of(self, slot: int) -> HeldLease | None:
        if not self.rows.holding[slot]:
            return None
        record, (engine, incarnation) = self.records.get(slot), self.holder_of(slot)
        deadline, num_tokens = self.rows.deadline[slot], self.rows.num_tokens[slot]
        return HeldLease(record.lease_id, engine, incarnation, record.offer, deadline, num_tokens)

    def set_engine(self, slot: int, name: str) -> None:
        before = self.rows.made_by[slot]
        self.rows.made_by[slot] = self._engine_names.take(name) if name else 0
        self._engine_names.drop(before)

    # ------------------------------------------------ changing

    def add(self, turn: NewTurn) -> KnownTurn:
        """Remembers a turn whose id is new. Others may have to go for it, but never a running one."""
        slot, rows = self.rows.take(), self.rows
        rows.index[slot] = turn.index & 0xFFFFFFFF
        rows.used_at[slot] = self._clock()
        rows.tenant[slot] = self._tenant_names.take(turn.tenant)
        rows.num_hashes[slot] = len(turn.chain) // PACKED_BYTES
        self._tenants.add(rows.tenant[slot], slot)
        record = Record(turn.session_id, turn.turn_id, "", turn.parts)
        self._grow(slot, ROW_BYTES + len(turn.chain) + self.records.put(slot, record))
        self.tree.add(slot, turn.chain)
        self._by_turn.add(turn.turn_id, slot)
        self._sessions.join(slot, turn.session_id)
        if turn.is_running:
            self.live[slot] = Live(Notice(), is_running=True, parent_turn_id=turn.parent_turn_id)
        self._make_room(slot)
        return KnownTurn(self, slot)

    def remove(self, turn: KnownTurn) -> None:
        slot, rows, record = turn.slot, self.rows, self.records.get(turn.slot)
        self.release(turn, None)
        self._by_turn.remove(record.turn_id, slot)
        self._sessions.leave(slot, record.session_id)
        self.tree.remove(slot, rows.num_hashes[slot])
        self._tenants.get(rows.tenant[slot]).num_bytes -= rows.num_bytes[slot]
        self.num_bytes -= rows.num_bytes[slot]
        self._tenants.remove(rows.tenant[slot], slot)
        self._tenant_names.drop(rows.tenant[slot])
        self.set_engine(slot, "")
        live = self.live.pop(slot, None)
        if live is not None:
            live.notice.settle()
        self.records.remove(slot)
        rows.give_back(slot)

    def hold(self, turn: KnownTurn, lease: HeldLease) -> None:
        """The turn's lease is this one now."""
        slot, rows, record = turn.slot, self.rows, self.records.get(turn.slot)
        holder, before = self._holders.take((lease.engine, lease.incarnation)), rows.holding[slot]
        key = _lease_key(lease.engine, lease.lease_id)
        if before:
            self._by_lease.remove(self._lease_key_of(record), slot)
        self._by_lease.add(key, slot)
        record = Record(record.session_id, record.turn_id, lease.lease_id, record.parts, lease.offer, holder)
        self._grow(slot, self.records.put(slot, record))
        self._num_by_engine[lease.engine] += 1
        self._drop_holder(before)
        rows.holding[slot], rows.deadline[slot], rows.ended[slot] = holder, lease.deadline, 0
        rows.num_tokens[slot] = min(max(lease.num_tokens, 0), 0xFFFFFFFF)
        if self.engine_of(slot) != lease.engine:
            self.set_engine(slot, lease.engine)
        self._make_room(slot)

    def release(self, turn: KnownTurn, reason: Decision | None) -> None:
        """The turn has no lease any more, for this reason; absent where nothing is to be told of it."""
        slot, rows = turn.slot, self.rows
        holder = rows.holding[slot]
        rows.ended[slot] = _DECISIONS.index(reason) + 1 if reason else 0
        if not holder:
            return
        record = self.records.get(slot)
        self._by_lease.remove(self._lease_key_of(record), slot)
        self._grow(slot, self.records.put(slot, Record(record.session_id, record.turn_id, "", record.parts)))
        rows.holding[slot] = rows.num_tokens[slot] = 0
        rows.deadline[slot] = 0.0
        self._drop_holder(holder)
        if reason:
            self._returning.observe(self._clock() - rows.used_at[slot], returned=False)

    def touch(self, turn: KnownTurn) -> None:
        """A prompt came back for the turn just now."""
        now = self._clock()
        self._returning.observe(now - self.rows.used_at[turn.slot], returned=True)
        self.rows.used_at[turn.slot] = now

    def rest(self, slot: int) -> None:
        """The turn may have ended: what only a live one needs goes, and what had to stay for it."""
        live = self.live.get(slot)
        if live is not None and live.is_over:
            del self.live[slot]
        self._make_room(slot)

    # ------------------------------------------------ leases by engine

    def num_held(self) -> int:
        return self._num_by_engine.total()

    def num_of(self, engine: str) -> int:
        """Leases of the engine, whatever its incarnation."""
        return self._num_by_engine.get(engine, 0)

    def num_held_by(self, engine: str, but_incarnation: str = "") -> int:
        return sum(
            count for _, (name, other), count in self._holders.items() if name == engine and other != but_incarnation
        )

    def held_by(self, engine: str) -> Iterator[KnownTurn]:
        """All turns with a lease of the engine: a walk over every row, for engines that restart or come back."""
        numbers = {number for number, (name, _), _ in self._holders.items() if name == engine}
        slots = [slot for slot, holder in enumerate(self.rows.holding) if holder in numbers]
        return (KnownTurn(self, slot) for slot in slots)

    # ------------------------------------------------ inside

    def _drop_holder(self, holder: int) -> None:
        name = self._holders.name(holder)
        if name is None:
            return
        self._num_by_engine[name[0]] -= 1
        if not self._num_by_engine[name[0]]:
            del self._num_by_engine[name[0]]
        if self._holders.drop(holder):
            self.records.forget_holder(holder)

    def _lease_key_of(self, record: Record) -> str:
        return _lease_key((self._holders.name(record.holder) or ("", ""))[0], record.lease_id)

    def _grow(self, slot: int, num_bytes: int) -> None:
        rows = self.rows
        rows.num_bytes[slot] += num_bytes
        self.num_bytes += num_bytes
        self._tenants.get(rows.tenant[slot]).num_bytes += num_bytes

    def _make_room(self, newest: int) -> None:
        tenant, num_done = self.rows.tenant[newest], 0
        while self._is_tight(tenant) and num_done < MAX_EVICTED_AT_ONCE:
            if self._is_over_share(tenant):
                victim = self._tenants.least_worth(tenant, lambda slot: self._worth(slot, newest))
            else:
                victim = self._tenants.least_worth_of_heaviest(lambda slot: self._worth(slot, newest))
            if victim is None:
                return
            if self.rows.holding[victim]:
                self._forgotten.note(self.tree.tail(victim))
            self.remove(KnownTurn(self, victim))
            self.num_evicted += 1
            num_done += 1

    def _is_tight(self, tenant: int) -> bool:
        if self.rows.num_taken > self.max_turns or self.num_bytes > self.max_bytes:
            return True
        return self.tenant_share < 1.0 and self._is_over_share(tenant)

    def _is_over_share(self, tenant: int) -> bool:
        holder = self._tenants.get(tenant)
        over_turns = len(holder.slots) > self.max_turns * self.tenant_share
        return over_turns or holder.num_bytes > self.max_bytes * self.tenant_share

    def _worth(self, slot: int, newest: int) -> tuple[float, float] | None:
        """Tokens that a return would save, times its chance, per byte if bytes are short; then the time of its use."""
        live, rows = self.live.get(slot), self.rows
        if slot == newest or (live is not None and live.is_running):
            return None
        if not rows.holding[slot]:
            return 0.0, rows.used_at[slot]
        now = self._clock()
        chance = self._returning.chance(now - rows.used_at[slot], rows.deadline[slot] - now)
        saved = rows.num_tokens[slot] * chance
        if self.num_bytes > self.max_bytes:
            saved /= rows.num_bytes[slot]
        return saved, rows.used_at[slot]


def _lease_key(engine: str, lease_id: str) -> str:
    """Engines name their leases each for itself."""
    return f"{engine}/{lease_id}"
