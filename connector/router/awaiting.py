"""Waiting for the lease notice of a turn that has just ended."""

import asyncio


class Notice:
    """Whether a turn's lease notice is still outstanding, and who waits for it."""

    __slots__ = ("_waiter", "is_outstanding")

    def __init__(self) -> None:
        self.is_outstanding = False
        self._waiter: asyncio.Future[None] | None = None

    def expect(self) -> None:
        self.is_outstanding = True

    def settle(self) -> None:
        """It came, or it won't: everybody who waits goes on."""
        self.is_outstanding = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None

    async def wait(self, seconds: float) -> bool:
        """True if the notice was settled within ``seconds``; false leaves it outstanding."""
        if not self.is_outstanding:
            return True
        if self._waiter is None:
            self._waiter = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait((self._waiter,), timeout=seconds)
        return bool(done)
