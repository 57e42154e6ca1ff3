"""A decision in words: for the ``place`` span and for operators. Bounded, ASCII, no client's word in it."""

from connector.router.choice.choose import UNPRICED, Candidate, Choice
from connector.router.choice.plan import Plan

MAX_REJECTED = 8
"""The cheapest of them; the rest is counted."""

Values = dict[str, str | int | float | bool]


def attributes_of(plan: Plan) -> Values:
    """Of the ``place`` span."""
    values: Values = {}
    if plan.is_measured:
        values["backhaul.estimated_prompt_tokens"] = plan.size.num_tokens
        values["backhaul.estimated_common_tokens"] = plan.size.num_common
    for leg, choice in (("decode", plan.decode), ("prefill", plan.prefill)):
        if choice is not None:
            values[f"backhaul.{leg}_chosen"] = _words(choice.chosen)
            values[f"backhaul.{leg}_why"] = choice.why.value
            values[f"backhaul.{leg}_rejected"] = _rejected(choice)
    if plan.is_decode_local:
        values["backhaul.decode_local"] = True
    return values


def header_of(plan: Plan) -> str:
    """One line for a response header."""
    parts = [f"tokens={plan.size.num_tokens} common={plan.size.num_common}"] if plan.is_measured else []
    for leg, choice in (("decode", plan.decode), ("prefill", plan.prefill)):
        if choice is not None:
            parts.append(f"{leg}={_words(choice.chosen)} {choice.why.value}")
            if choice.rejected:
                parts.append(f"not {_rejected(choice)}")
    if plan.is_decode_local:
        parts.append("decode_local")
    return "; ".join(parts)


def _rejected(choice: Choice) -> str:
    ordered = sorted(choice.rejected, key=lambda pair: pair[0].cost.total)
    told = [f"{_words(one)} {reason.value}" for one, reason in ordered[:MAX_REJECTED]]
    more = len(ordered) - len(told)
    return ", ".join(told) + (f", and {more} more" if more else "")


def _words(one: Candidate) -> str:
    """Name, whole cost and its parts, in milliseconds."""
    cost = one.cost
    if cost is UNPRICED:
        return one.name
    parts = (cost.total, cost.queue, cost.compute, cost.transfer, cost.keep)
    total, queue, compute, transfer, keep = (f"{seconds * 1000:.4g}" for seconds in parts)
    return f"{one.name} {total}ms (queue {queue} compute {compute} transfer {transfer} keep {keep})"
