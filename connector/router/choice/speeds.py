"""What engines and pairs of them really do, learned from the router's own turns."""

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable

SAMPLES = 15
PRIOR_SAMPLES = 3
"""The prior counts as so many samples until there are as many of its own."""

MAX_FACTOR = 1000.0
"""Samples further from the prior are cut to this: a clock that jumped, an engine that hung."""

FRESH_SECONDS = 600.0
"""An estimate without a newer sample is forgotten, so that an engine that was slow once is tried again."""

MAX_ENGINES = 1024
MAX_PAIRS = 4096
MAX_MODELS = 256

PREFILL_SECONDS_PER_TOKEN = 1e-4
TRANSFER_SECONDS_PER_TOKEN = 1e-5
STEP_SECONDS = 0.01
REPLY_TOKENS = 100.0
TOKENS_PER_BYTE = 0.25
"""Priors: what is taken for true until something was measured."""


class Estimate:
    """A running median, so that one odd sample moves nothing."""

    __slots__ = ("_prior", "_samples", "added_at", "value")

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        self.value = prior
        self.added_at = -math.inf

    @property
    def is_measured(self) -> bool:
        return bool(self._samples)

    def add(self, sample: float, now: float) -> None:
        """What isn't a finite number is no sample."""
        if not math.isfinite(sample):
            return
        self._samples.append(min(max(sample, self._prior / MAX_FACTOR), self._prior * MAX_FACTOR))
        self.added_at = now
        padding = [self._prior] * (PRIOR_SAMPLES - len(self._samples))
        ordered = sorted([*self._samples, *padding])
        middle = len(ordered) // 2
        self.value = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Learned:
    """One quantity of many things, by key: bounded, and void once a thing's incarnation changed.

    A thing that wasn't measured is taken to be as the others are.
    """

    def __init__(self, prior: float, max_keys: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._prior = prior
        self._max_keys = max_keys
        self._clock = clock
        self._typical = Estimate(prior)
        self._by_key: OrderedDict[str, tuple[str, Estimate]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def of(self, key: str, incarnation: str) -> float:
        found = self._by_key.get(key)
        if found is None or found[0] != incarnation or self._clock() - found[1].added_at > FRESH_SECONDS:
            return self._typical.value
        return found[1].value

    def learn(self, key: str, incarnation: str, sample: float) -> None:
        now = self._clock()
        found = self._by_key.get(key)
        if found is None or found[0] != incarnation or now - found[1].added_at > FRESH_SECONDS:
            found = self._by_key[key] = incarnation, Estimate(self._prior)
        found[1].add(sample, now)
        self._typical.add(sample, now)
        self._by_key.move_to_end(key)
        if len(self._by_key) > self._max_keys:
            self._by_key.popitem(last=False)


class Speeds:
    """All that is learned: seconds per token that a prefill engine computes, that one engine reads of another, and that
    a decode engine generates; tokens of a model's replies, and per byte of its prompts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.prefill = Learned(PREFILL_SECONDS_PER_TOKEN, MAX_ENGINES, clock)
        self.transfer = Learned(TRANSFER_SECONDS_PER_TOKEN, MAX_PAIRS, clock)
        self.step = Learned(STEP_SECONDS, MAX_ENGINES, clock)
        self.reply_tokens = Learned(REPLY_TOKENS, MAX_MODELS, clock)
        self.tokens_per_byte = Learned(TOKENS_PER_BYTE, MAX_MODELS, clock)

    def turn_seconds(self, engine: str, incarnation: str, model: str) -> float:
        """How long a usual turn of the model generates at this engine."""
        return self.step.of(engine, incarnation) * self.reply_tokens.of(model, "")


def pair_key(source: str, reader: str) -> str:
    """Names of engines hold no ``>``."""
    return f"{source}>{reader}"
