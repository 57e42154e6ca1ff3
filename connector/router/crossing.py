"""What the way between two engines does to a turn: no lease is offered across one that is in quarantine."""

import msgspec

from connector.protocol import Decision
from connector.router.fleet import Engine
from connector.router.health.pairs import Pairs
from connector.router.known import HeldLease
from connector.router.turnstate import Turn


def open_way(pairs: Pairs, turn: Turn, reader: Engine) -> HeldLease | None:
    """The lease that the reader is offered; a turn whose way is shut goes on without one."""
    lease = turn.placement.lease
    if lease is None:
        return None
    if pairs.is_out(lease.engine, reader.name):
        withheld = Decision.TRANSFER_FAILED
        turn.placement = msgspec.structs.replace(turn.placement, lease=None, withheld=withheld, comparison=None)
        return None
    pairs.start(lease.engine, reader.name)
    return lease


def close_way(pairs: Pairs, turn: Turn, lease: HeldLease, reader: Engine) -> None:
    """The leg that was offered the lease has ended."""
    if turn.reply is not None:
        pairs.note(lease.engine, reader.name, turn.reply.decision)
