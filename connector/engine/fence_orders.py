"""Which fence words the workers are to raise, drop or compare with at the next step. Scheduler thread only."""

from connector.engine.fence import FenceSlots
from connector.engine.metadata import FenceTarget, SchedulerOrders
from connector.engine.offers import KvOffer


class FenceOrders:
    """Slots of this engine's own requests, and targets of the pulls that it is about to post."""

    def __init__(self) -> None:
        self._slots = FenceSlots()
        self._raised: dict[str, tuple[int, int]] = {}
        self._dropped: list[str] = []
        self._targets: dict[str, FenceTarget] = {}

    def raise_word(self, request_id: str) -> None:
        """At admission, so that the word stands before the request can be offered; without a free slot it never is."""
        slot = self._slots.assign(request_id)
        if slot is not None:
            self._raised[request_id] = slot

    def word_of(self, request_id: str) -> tuple[int, int] | None:
        """(slot, generation)."""
        return self._slots.get(request_id)

    def compare(self, request_id: str, offer: KvOffer) -> None:
        words = {word.rank: word.address for word in offer.fence_words}
        self._targets[request_id] = FenceTarget(words, offer.fence_generation)

    def drop(self, request_id: str) -> None:
        """Of a request that ends without a lease."""
        if self._slots.release(request_id):
            self._dropped.append(request_id)

    def leased(self, request_id: str) -> None:
        """The lease itself remembers its slot and generation from here on."""
        self._slots.hand_over(request_id)

    def lease_ended(self, request_id: str, slot: int | None) -> None:
        """The workers have zeroed the word themselves, before they reported the blocks. ``slot``: the lease's."""
        if not self._slots.release(request_id) and slot is not None:
            self._slots.give_back(slot)

    @property
    def has_orders(self) -> bool:
        return bool(self._raised or self._dropped or self._targets)

    def fill(self, orders: SchedulerOrders) -> None:
        orders.fence_words, self._raised = self._raised, {}
        orders.dropped_words, self._dropped = self._dropped, []
        orders.fence_targets, self._targets = self._targets, {}
