"""Whether two engines' answers come from the same KV: by top-5 log-probabilities, not by text.

A random model's text says little; its log-probabilities move by 0.017 for a single wrong token, and by about 1e-5 for
float noise.
"""

import msgspec

TOLERANCE = 2e-4
NUM_TOP = 5

TopLogprobs = dict[int, float]
"""Token id → log-probability of the likeliest tokens at one position."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """``top[i]``: the candidates for generated token ``i``. ``backhaul``: what P's connector put into its answer."""

    token_ids: tuple[int, ...]
    top: tuple[TopLogprobs, ...]
    backhaul: dict[str, str | int] = {}


def largest_difference(answer: Answer, truth: Answer) -> float:
    """Over all generated tokens, up to the first where float noise chose between two equally likely ones."""
    worst = 0.0
    for index, (mine, theirs) in enumerate(zip(answer.top, truth.top, strict=False)):
        worst = max(worst, _difference(mine, theirs))
        if answer.token_ids[index] != truth.token_ids[index]:
            break
    return worst


def _difference(mine: TopLogprobs, theirs: TopLogprobs) -> float:
    """A candidate that only one side lists must be as likely as the other side's least likely one."""
    shared = mine.keys() & theirs.keys()
    differences = [abs(mine[token] - theirs[token]) for token in shared]
    for one, other in ((mine, theirs), (theirs, mine)):
        differences += [abs(value - min(other.values())) for token, value in one.items() if token not in shared]
    return max(differences)
