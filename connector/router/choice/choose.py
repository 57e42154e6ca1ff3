"""The choice among candidates. Pure: the same candidates give the same choice."""

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from connector.router.choice.costs import SHARE_PER_TURN, Cost

HOLDER_SHARE = 0.5
"""Another engine is clearly cheaper than the holder when it saves more than this share of its own cost, and more than
the noise. A conversation that moves leaves its KV behind."""

TYPICAL_IN_FLIGHT = 50
"""Turns that a busy engine has in flight; how many it has in a moment varies by about the square root of that."""

NOISE_SHARE = SHARE_PER_TURN * math.sqrt(TYPICAL_IN_FLIGHT)
"""Of a usual turn: what the queues of two engines alike differ by from one moment to the next."""

TIE_SECONDS = 0.001
"""Costs that differ by less are equal, and the engine that wasn't picked for longest is taken."""


UNPRICED = Cost()


class Why(StrEnum):
    HOLDER = "holder"
    CHEAPEST = "cheapest"
    ONLY = "only"
    KEEPER = "keeper"
    RETRY = "retry"


class WhyNot(StrEnum):
    AVOIDED = "avoided"
    COSTLIER = "costlier"
    TIED = "tied"
    WITHIN_MARGIN = "within_margin"


class Candidate(msgspec.Struct, frozen=True):
    """An engine that could serve; without a rival it isn't priced. ``picked_at``: later picks have higher numbers;
    ``is_avoided``: it seems to be sick; ``is_holder``: it has, or lately had, the conversation's KV."""

    name: str
    cost: Cost = UNPRICED
    picked_at: int = 0
    is_avoided: bool = False
    is_holder: bool = False


class Choice(msgspec.Struct, frozen=True):
    chosen: Candidate
    why: Why
    rejected: tuple[tuple[Candidate, WhyNot], ...] = ()


def choose(candidates: Sequence[Candidate], noise_seconds: float = 0.0) -> Choice | None:
    """The holder unless another is clearly cheaper, else the cheapest; engines that are avoided only if all are.

    Absent when there is no candidate. None but a holder is ever chosen while another is nowhere dearer and somewhere
    cheaper. ``noise_seconds``: what costs of engines alike differ by.
    """
    if not candidates:
        return None
    if len(candidates) == 1:
        return Choice(candidates[0], Why.ONLY)
    usable = [one for one in candidates if not one.is_avoided] or list(candidates)
    best, tied = _cheapest(usable)
    holder = next((one for one in usable if one.is_holder), None)
    if holder is not None and holder.cost.total <= dearest_holder(best.cost.total, noise_seconds):
        chosen, why = holder, Why.HOLDER
    else:
        chosen, why = best, Why.CHEAPEST
    rejected = tuple((one, _why_not(one, chosen, usable, tied)) for one in candidates if one is not chosen)
    return Choice(chosen, why, rejected)


def dearest_holder(best_total: float, noise_seconds: float) -> float:
    """What a holder may cost at most to be preferred over the best of the others, in seconds."""
    return best_total + max(best_total * HOLDER_SHARE, noise_seconds)


def _cheapest(usable: Sequence[Candidate]) -> tuple[Candidate, list[Candidate]]:
    """The one to take, and all that cost as much."""
    least = min(one.cost.total for one in usable)
    close = [one for one in usable if one.cost.total <= least + TIE_SECONDS]
    tied = [one for one in close if not any(one.cost.is_dominated_by(other.cost) for other in close)]
    return min(tied, key=lambda one: (one.picked_at, one.name)), tied


def _why_not(one: Candidate, chosen: Candidate, usable: Sequence[Candidate], tied: list[Candidate]) -> WhyNot:
    if one not in usable:
        return WhyNot.AVOIDED
    if one.cost.total < chosen.cost.total:
        return WhyNot.TIED if chosen in tied else WhyNot.WITHIN_MARGIN
    return WhyNot.TIED if one in tied and chosen in tied else WhyNot.COSTLIER
