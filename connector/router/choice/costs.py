"""What a turn would cost at an engine, in expected seconds. Pure functions of numbers."""

from dataclasses import dataclass

SHARE_PER_TURN = 0.02
"""Each turn in flight makes the others of its batch this much longer."""

LEASES_SHARE = 0.02
"""What as many leases as engines have on average say of load to come, as a share of a usual turn: conversations go on
where their leases are. It counts as one turn more in flight."""

MAX_LEASES_RATIO = 2.0
"""An engine that is new and holds none must not draw everyone either."""

RATIO_STEPS = 4
"""Smaller differences than a quarter of the average are none, so that engines alike take turns."""

FULLNESS_SHARE = 0.05
"""What an engine whose blocks are all leased costs more than an empty one, as a share of a usual turn: a new lease
makes another one go."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Expected seconds, each at least 0. ``keep``: what the turn's KV will be in the way of afterwards."""

    queue: float = 0.0
    compute: float = 0.0
    transfer: float = 0.0
    keep: float = 0.0

    @property
    def total(self) -> float:
        return self.queue + self.compute + self.transfer + self.keep

    def is_dominated_by(self, other: "Cost") -> bool:
        """The other is nowhere dearer, and somewhere cheaper."""
        mine = (self.queue, self.compute, self.transfer, self.keep)
        its = (other.queue, other.compute, other.transfer, other.keep)
        return mine != its and all(b <= a for a, b in zip(mine, its, strict=True))


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """What an engine has to do now. ``leases_ratio``: leases that it holds over those that engines hold on average;
    ``leased_share``: of its KV blocks, 0 to 1."""

    num_in_flight: float = 0
    num_running: int = 0
    num_waiting: int = 0
    leases_ratio: float = 0.0
    leased_share: float = 0.0


def decode_queue_seconds(load: DecodeLoad, turn_seconds: float) -> float:
    """A batch slows with every turn in it; turns that wait for blocks start one by one, as others end."""
    waiting = load.num_waiting * turn_seconds / max(1, load.num_running)
    return load.num_in_flight * SHARE_PER_TURN * turn_seconds + waiting


def keep_share(load: DecodeLoad) -> float:
    """Of a usual turn."""
    ratio = min(MAX_LEASES_RATIO, load.leases_ratio)
    return round(ratio * RATIO_STEPS) / RATIO_STEPS * LEASES_SHARE + max(0.0, load.leased_share) * FULLNESS_SHARE


def leases_ratio(num_leases: int, mean_leases: float) -> float:
    """One is added to both, so that the first few leases say little."""
    return (num_leases + 1) / (mean_leases + 1)


def decode_cost(load: DecodeLoad, turn_seconds: float, num_lacking: int, seconds_per_token: float) -> Cost:
    """``num_lacking`` tokens of the prompt aren't at the engine, which reads them at this speed."""
    return Cost(
        queue=decode_queue_seconds(load, turn_seconds),
        transfer=num_lacking * seconds_per_token,
        keep=keep_share(load) * turn_seconds,
    )


@dataclass(frozen=True, slots=True)
class PrefillWork:
    """How prefill would get a prompt, in tokens; the rest of it is in the engine's own prefix cache."""

    num_pulled: int
    num_computed: int


def prefill_work(num_prompt: int, num_offered: int, num_local: int, pull_threshold: int) -> PrefillWork:
    """``num_offered`` tokens are held elsewhere, ``num_local`` here, both from the start of the prompt. Fewer than
    ``pull_threshold`` lacking tokens aren't worth a pull."""
    local = min(num_prompt, num_local)
    pulled = max(0, min(num_prompt, num_offered) - local)
    pulled = pulled if pulled >= pull_threshold else 0
    return PrefillWork(pulled, num_prompt - local - pulled)


def prefill_cost(
    work: PrefillWork, num_queued: float, compute_per_token: float, pull_per_token: float, handoff_seconds: float
) -> Cost:
    """``num_queued`` tokens are to be computed first. ``handoff_seconds``: until decode has read the result."""
    return Cost(
        queue=num_queued * compute_per_token,
        compute=work.num_computed * compute_per_token,
        transfer=work.num_pulled * pull_per_token + handoff_seconds,
    )
