"""From what each rank reports of a pull to the one record of the transfer."""

import time

from connector.engine.legs import Leg
from connector.engine.metadata import RankTransfer
from connector.identity import uuid7
from connector.protocol import Direction, Role, TransferOutcome, TransferRecorded

WORST_FIRST = (TransferOutcome.TIMEOUT, TransferOutcome.FAILED, TransferOutcome.FENCED, TransferOutcome.COMPLETED)


class TransferBook:
    """Pulls in flight, by request. A request that was aborted meanwhile still gets its record."""

    def __init__(self, engine_name: str, role: Role) -> None:
        self._engine_name = engine_name
        self._direction = Direction.DECODE_TO_PREFILL if role is Role.PREFILL else Direction.PREFILL_TO_DECODE
        self._legs: dict[str, Leg] = {}
        self._ranks: dict[str, list[RankTransfer]] = {}
        self._reported_at: dict[str, float] = {}

    @property
    def is_waiting(self) -> bool:
        return bool(self._legs)

    def start(self, request_id: str, leg: Leg) -> None:
        self._legs[request_id] = leg

    def note(self, transfers: list[RankTransfer]) -> None:
        for transfer in transfers:
            if transfer.request_id not in self._legs:
                continue  # of a stock peer, which no leg is waiting for
            self._ranks.setdefault(transfer.request_id, []).append(transfer)
            self._reported_at[transfer.request_id] = time.perf_counter()

    def finish(self, request_id: str) -> tuple[Leg, TransferRecorded] | None:
        """Once every rank has reported to vLLM that the request's receive has ended."""
        leg = self._legs.pop(request_id, None)
        ranks = self._ranks.pop(request_id, [])
        reported_at = self._reported_at.pop(request_id, time.perf_counter())
        if leg is None or leg.offer is None or leg.match is None:
            return None
        worst = min(ranks, key=lambda rank: WORST_FIRST.index(TransferOutcome(rank.outcome)), default=None)
        outcome = TransferOutcome(worst.outcome) if worst else TransferOutcome.FAILED
        return leg, TransferRecorded(
            transfer_id=str(uuid7()),
            direction=self._direction,
            source_engine=leg.offer.engine,
            target_engine=self._engine_name,
            session_id=leg.envelope.session_id,
            turn_id=leg.envelope.turn_id,
            lease_id=leg.offer.lease_id,
            num_tokens=leg.match.num_pull_tokens,
            num_blocks=leg.match.num_blocks - leg.num_local_tokens // leg.offer.block_size,
            num_bytes=sum(rank.num_bytes for rank in ranks),
            post_ms=max((rank.post_ms for rank in ranks), default=0.0),
            duration_ms=max((rank.duration_ms for rank in ranks), default=0.0),
            start_age_ms=max((rank.start_age_ms for rank in ranks), default=0.0)
            + (time.perf_counter() - reported_at) * 1e3,
            outcome=outcome,
            reason=worst.reason if worst else "unreported",
            num_ranks=max(1, len(ranks)),
            traceparent=leg.envelope.traceparent,
        )
