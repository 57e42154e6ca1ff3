"""Which prompts a prefill engine computed lately, and so may find in its own prefix cache."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from connector.router.choice.speeds import Estimate

MAX_PROMPTS = 4096
"""Per engine; the oldest go first, as in the engine's own cache."""

MAX_LOOKUPS = 64
"""Prefixes of a prompt that are looked up, the longest first: a turn goes on from a recent one."""

MAX_ENGINES = 256

ALL = 1.0


class _Memory:
    """One incarnation's. ``found_share``: how much of what should be there proved to be."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.num_tokens: OrderedDict[str, int] = OrderedDict()
        self.found_share = Estimate(ALL)


class PrefixMemory:
    """By engine; bounded, and empty again once an engine restarted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_engine: OrderedDict[str, _Memory] = OrderedDict()

    def note(self, engine: str, incarnation: str, prompt: str, num_tokens: int) -> None:
        """The engine has computed the prompt that this hash stands for."""
        if not prompt or not num_tokens:
            return
        memory = self._of(engine, incarnation)
        memory.num_tokens[prompt] = num_tokens
        memory.num_tokens.move_to_end(prompt)
        if len(memory.num_tokens) > MAX_PROMPTS:
            memory.num_tokens.popitem(last=False)

    def note_found(self, engine: str, incarnation: str, share: float) -> None:
        """Of the tokens that were expected in its cache this share was there. An engine without one shows 0."""
        self._of(engine, incarnation).found_share.add(share, self._clock())

    def remembered(self, engine: str, incarnation: str, chain: Sequence[str]) -> int:
        """Tokens of the longest prefix that the engine computed, there still or not."""
        memory = self._by_engine.get(engine)
        if memory is None or memory.incarnation != incarnation:
            return 0
        for prefix in reversed(chain[-MAX_LOOKUPS:]):
            found = memory.num_tokens.get(prefix)
            if found is not None:
                return found
        return 0

    def num_local(self, engine: str, incarnation: str, chain: Sequence[str]) -> int:
        """Tokens that are expected in the engine's cache."""
        found = self.remembered(engine, incarnation, chain)
        return int(found * min(1.0, self._by_engine[engine].found_share.value)) if found else 0

    def _of(self, engine: str, incarnation: str) -> _Memory:
        memory = self._by_engine.get(engine)
        if memory is None or memory.incarnation != incarnation:
            memory = self._by_engine[engine] = _Memory(incarnation)
        self._by_engine.move_to_end(engine)
        if len(self._by_engine) > MAX_ENGINES:
            self._by_engine.popitem(last=False)
        return memory
