"""A prefill and a decode engine, as in ``engine_bench``, whose NIXL agents reach each other."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from connector.protocol import LegEnvelope, Role
from tests.connector.engine.builders import FLEET_KEY, an_envelope
from tests.contract.engine_bench import WRONG, Engine, reply_of
from tests.contract.fake_nixl import FakeHandle
from tests.contract.leftovers import leftovers_of
from tests.contract.wired_nixl import Wire
from tests.contract.worker_bench import ManualClock

__all__ = ["PROMPT", "WRONG", "Engine", "Pair", "reply_of"]

PROMPT = list(range(1, 19))
"""Four blocks and a half."""


class Pair:
    def __init__(
        self, folder: Path, clock: ManualClock, *, num_ranks: int = 1, num_blocks: int = 64, **policy: Any
    ) -> None:
        self.clock = clock
        self.wire = Wire()
        given = {"kv_recompute_threshold": 1, **policy}
        self.prefill, self.decode = (
            Engine(folder, self.wire, role, num_ranks=num_ranks, num_blocks=num_blocks, **given)
            for role in (Role.PREFILL, Role.DECODE)
        )

    def close(self) -> None:
        self.prefill.close()
        self.decode.close()

    def envelope(self, role: Role, turn: str, **changes: Any) -> LegEnvelope:
        return an_envelope(**{"leg": role, "turn_id": turn, "session_id": turn, **changes})

    def params(self, role: Role, turn: str, offer: str | None, **envelope: Any) -> dict[str, Any]:
        signed = FLEET_KEY.sign("envelope", self.envelope(role, turn, **envelope))
        is_prefill = role is Role.PREFILL
        return {
            "do_remote_decode": is_prefill,
            "do_remote_prefill": not is_prefill,
            "backhaul": {"envelope": signed, "offer": offer},
        }

    def start_prefill(self, turn: str, tokens: Sequence[int], offer: str | None = None, **envelope: Any) -> str:
        """The request's id."""
        request_id = f"p-{turn}"
        self.prefill.add(request_id, tokens, self.params(Role.PREFILL, turn, offer, **envelope))
        return request_id

    def start_decode(
        self, turn: str, tokens: Sequence[int], offer: str | None, num_tokens: int = 3, **envelope: Any
    ) -> str:
        request_id = f"d-{turn}"
        self.decode.add(request_id, tokens, self.params(Role.DECODE, turn, offer, **envelope), num_tokens)
        return request_id

    def prefilled(self, turn: str, tokens: Sequence[int], offer: str | None = None, **envelope: Any) -> str:
        """P's offer for D."""
        request_id = self.start_prefill(turn, tokens, offer, **envelope)
        self.prefill.run(request_id)
        return self.offer_of(request_id)

    def offer_of(self, prefill_request: str) -> str:
        params = self.prefill.finished[prefill_request]
        assert params is not None
        return str(params["backhaul"]["offer"])

    def turn(self, turn: str, tokens: Sequence[int], offer: str | None = None, num_tokens: int = 3) -> str:
        """Both legs; D's lease, as an offer for the next turn. The answer is checked against the truth."""
        request_id = self.start_decode(turn, tokens, self.prefilled(turn, tokens, offer), num_tokens)
        self.decode.run(request_id)
        assert self.decode.answers[request_id] == reply_of(tokens, num_tokens)
        self.step()
        return self.decode.leases()[-1].offer

    def step(self) -> None:
        self.prefill.step()
        self.decode.step()

    def settle(self) -> None:
        for _ in range(6):
            self.step()

    def expire_all(self) -> None:
        """Longer than any lease or deadline."""
        self.settle()
        self.clock.now += 1000
        self.settle()

    def leftovers(self) -> list[str]:
        return [
            f"{engine.role.value}: {name}" for engine in (self.prefill, self.decode) for name in leftovers_of(engine)
        ]

    @property
    def reads(self) -> list[FakeHandle]:
        return [read for engine in (self.prefill, self.decode) for nixl in engine.nixls for read in nixl.reads]
