"""What of a request shapes its prompt, in the same form for every API."""

from dataclasses import dataclass, field

import msgspec

from connector.router.requests.endpoint import OneLeg

ONE = msgspec.Raw(b"1")
NO = msgspec.Raw(b"false")


class Content(msgspec.Struct, frozen=True):
    """``messages``: what conversations grow by, oldest first, for chains; absent for plain prompts and for prompts that
    only an engine knows whole. ``root``: what precedes all of them, tools as a rule. ``prompt``: of completions.
    """

    one_leg: OneLeg | None = None
    messages: list[object] | None = None
    root: object = None
    prompt: str | list[int] | None = None
    previous_response_id: str = ""


@dataclass(frozen=True, slots=True)
class PrefillChanges:
    """How the prefill leg differs from the client's request: exactly one token, not streamed, nothing kept of it."""

    dropped: frozenset[str]
    put: dict[str, msgspec.Raw] = field(default_factory=dict)
