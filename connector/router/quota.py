"""Tenants' shares of the index: who has to give way, and which of its turns goes.

A tenant that holds no more than an equal share is never made smaller by what others add: the one that holds most gives
way. Of its turns the one goes whose lease is expected to save least; looked for in a sample, so that the work is the
same however many there are.
"""

from array import array
from collections.abc import Callable
from random import Random

SAMPLE = 12

Worth = Callable[[int], tuple[float, float] | None]
"""What a turn is worth to keep, in any order; absent for one that must stay."""


class Tenant:
    """Its turns in no order, and what they cost."""

    __slots__ = ("num_bytes", "slots")

    def __init__(self) -> None:
        self.slots = array("I")
        self.num_bytes = 0


class Tenants:
    """Turns by tenant number. ``place`` is the caller's column of where each turn stands among those of its tenant."""

    def __init__(self, place: "array[int]") -> None:
        self._place = place
        self._tenants: dict[int, Tenant] = {}
        self._random = Random(0)  # noqa: S311 - spreads a sample, keeps no secret

    def __len__(self) -> int:
        return len(self._tenants)

    def get(self, tenant: int) -> Tenant:
        return self._tenants[tenant]

    def add(self, tenant: int, slot: int) -> None:
        holder = self._tenants.get(tenant)
        if holder is None:
            holder = self._tenants[tenant] = Tenant()
        self._place[slot] = len(holder.slots)
        holder.slots.append(slot)

    def remove(self, tenant: int, slot: int) -> None:
        holder = self._tenants[tenant]
        last = holder.slots.pop()
        if last != slot:
            place = self._place[slot]
            holder.slots[place], self._place[last] = last, place
        if not holder.slots:
            del self._tenants[tenant]

    def least_worth_of_heaviest(self, worth: Worth) -> int | None:
        """A turn of the tenant that holds most, or, where all of that one's must stay, of the next that holds more than
        an equal share; absent if there is none.
        """
        heaviest = max(self._tenants, key=self._weight, default=None)
        victim = None if heaviest is None else self.least_worth(heaviest, worth)
        if victim is not None or len(self._tenants) < 2:
            return victim
        equal_share = sum(map(self._weight, self._tenants)) / len(self._tenants)
        for tenant in sorted(self._tenants, key=self._weight, reverse=True):
            if self._weight(tenant) <= equal_share:
                return None
            victim = self.least_worth(tenant, worth)
            if victim is not None:
                return victim
        return None

    def _weight(self, tenant: int) -> int:
        return self._tenants[tenant].num_bytes

    def least_worth(self, tenant: int, worth: Worth) -> int | None:
        """A turn of the tenant to let go; absent if all that were looked at must stay."""
        slots = self._tenants[tenant].slots
        sample = slots if len(slots) <= SAMPLE else [self._random.choice(slots) for _ in range(SAMPLE)]
        least, victim = None, None
        for slot in sample:
            value = worth(slot)
            if value is not None and (least is None or value < least):
                least, victim = value, slot
        return victim


class Forgotten:
    """Whole prompts of turns that gave way though their leases lived, so that the next turn can be told why."""

    LIMIT = 16_384

    def __init__(self) -> None:
        self._tails: dict[bytes, None] = {}

    def note(self, tail: bytes) -> None:
        self._tails[tail] = None
        if len(self._tails) > self.LIMIT:
            del self._tails[next(iter(self._tails))]

    def has_any(self, chain: bytes, size: int) -> bool:
        """Whether a prompt goes on from one of them; ``size``: bytes of a hash."""
        return bool(self._tails) and any(chain[at : at + size] in self._tails for at in range(0, len(chain), size))
