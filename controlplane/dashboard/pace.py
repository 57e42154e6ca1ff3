"""How many frames a page has still to confirm, and when it must be given a fresh picture instead of updates. Pure."""

MAX_IN_FLIGHT = 8


class Pace:
    """Counts frames sent and confirmed on one connection."""

    def __init__(self, max_in_flight: int = MAX_IN_FLIGHT) -> None:
        self._max_in_flight = max_in_flight
        self._sent = 0
        self._seen = 0

    def next_sequence(self) -> int:
        self._sent += 1
        return self._sent

    def confirm(self, sequence: int) -> None:
        """Raises ``ValueError`` for a frame that was never sent; a late confirmation changes nothing."""
        if not 0 < sequence <= self._sent:
            raise ValueError("confirms a frame that was never sent")
        self._seen = max(self._seen, sequence)

    @property
    def num_in_flight(self) -> int:
        return self._sent - self._seen

    @property
    def is_behind(self) -> bool:
        """Nothing more may be sent until the page has caught up."""
        return self.num_in_flight >= self._max_in_flight
