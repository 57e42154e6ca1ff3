"""Whether a prompt rewrites the history of an earlier one, and how far the two agree.

Works on packed parts: one short keyed hash per message, each for itself, so that a message is found again at another
position. Like chains they are hints; nothing but the early release of a lease and a report depend on them.
"""

from collections.abc import Iterable

from connector.router.runs import num_common_of

PART_BYTES = 8
MAX_PARTS = 1024
"""Messages beyond are not looked at: 8 KiB a turn at most."""

MIN_RUN = 2
"""Messages in a row that two histories must share to be the same one: a single "continue" proves nothing."""

MAX_OCCURRENCES = 16


def pack_parts(parts: Iterable[bytes]) -> bytes:
    return b"".join(part[:PART_BYTES] for _, part in zip(range(MAX_PARTS), parts, strict=False))


def num_common_parts(one: bytes, other: bytes) -> int:
    """How many messages two histories share from the start."""
    return num_common_of(one, other, PART_BYTES)


def has_rewritten(old: bytes, new: bytes) -> bool:
    """Whether ``new`` goes on with the history of ``old`` after changing it, so that nothing will extend ``old`` again.

    True when the last messages of ``old``, at least two that follow the point where the two part, are in ``new`` as
    well, in a row and with something after them. A branch or a sub-agent shares only what precedes that point.
    """
    start = num_common_parts(old, new) * PART_BYTES
    if len(old) - start < MIN_RUN * PART_BYTES:
        return False
    run = old[-MIN_RUN * PART_BYTES :]
    place, end = -1, len(new) - PART_BYTES
    for _ in range(MAX_OCCURRENCES):
        place = new.rfind(run, start, end)
        if place < 0:
            return False
        if place % PART_BYTES == 0:
            return True
        end = place + len(run) - 1
    return False
