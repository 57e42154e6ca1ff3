"""Lease control without an engine: a block pool of 20 blocks, an agent's ear, and workers that obey when told to."""

from types import SimpleNamespace
from typing import Any

from connector.engine.demand import BlockDemand
from connector.engine.lease import Lease
from connector.engine.lease_control import LeaseControl
from connector.engine.metadata import SchedulerOrders
from connector.engine.policy import LivePolicy
from connector.protocol import (
    CommandDone,
    EngineToAgent,
    ExtendLease,
    LeaseEnded,
    LeaseState,
    PolicyValues,
    ReleaseLease,
)
from tests.connector.engine.builders import BLOCK_SIZE, a_factory, a_lease, covers

NUM_GPU_BLOCKS = 20


class FakeReporter:
    """Collects what the agent would hear, and hands in its commands."""

    def __init__(self) -> None:
        self.sent: list[EngineToAgent] = []
        self.events: list[Any] = []
        self.inbox: list[ReleaseLease | ExtendLease] = []

    def send(self, message: EngineToAgent) -> None:
        self.sent.append(message)

    def event(self, event: Any) -> None:
        self.events.append(event)

    def done(self, command: ReleaseLease | ExtendLease, outcome: str, detail: str = "") -> None:
        self.sent.append(CommandDone(command_id=command.command_id, outcome=outcome, detail=detail))

    def commands(self) -> list[ReleaseLease | ExtendLease]:
        taken, self.inbox = self.inbox, []
        return taken


class Bench:
    """Lease control with a block pool of 20 blocks and workers that obey when told to."""

    def __init__(self, **policy: Any) -> None:
        self.policy = LivePolicy(PolicyValues(**policy))
        self.control = LeaseControl(a_factory(), self.policy, BlockDemand(BLOCK_SIZE, 1))
        self.reporter = FakeReporter()
        self.control.reporter = self.reporter  # type: ignore[assignment]  # the part of it that is used
        self.num_gpu_blocks = NUM_GPU_BLOCKS
        self.num_free = 10
        self.control.bind(self)
        self.revision = 0

    def get_num_free_blocks(self) -> int:
        return self.num_free

    def grant(self, name: str, blocks: list[int], **changes: Any) -> Lease:
        lease = a_lease(name, blocks, **changes)
        tokens = changes.get("tokens") or range(len(blocks) * BLOCK_SIZE)
        self.control.grant(lease, covers=covers(list(tokens)))
        return lease

    def make_room(self, num_tokens: int, request_id: str = "waiting") -> None:
        """vLLM tries to schedule a request of so many tokens."""
        request = SimpleNamespace(request_id=request_id, num_tokens=num_tokens, block_hashes=[])
        self.control.room.make_room(request, 0)

    def step(self, **scheduled: int) -> None:
        """The end of vLLM's scheduling: so many tokens of each request."""
        output = SimpleNamespace(num_scheduled_tokens=scheduled, total_num_scheduled_tokens=sum(scheduled.values()))
        self.control.room.keep_low_water(output)

    def publish(self, **policy: Any) -> None:
        self.revision += 1
        self.policy.set(self.revision, PolicyValues(**policy))
        self.control.pump()

    def command(self, command: ReleaseLease | ExtendLease) -> str:
        self.reporter.inbox.append(command)
        self.control.pump()
        answer = self.reporter.sent[-1]
        assert isinstance(answer, CommandDone)
        assert answer.command_id == command.command_id
        return answer.outcome

    def orders(self) -> SchedulerOrders:
        orders = SchedulerOrders(pull_deadline_seconds=5, lease_extension_seconds=20)
        self.control.fill(orders)
        return orders

    def released(self) -> list[str]:
        """Orders this step's releases and lets the workers obey them."""
        releases = self.orders().releases
        for request_id in releases:
            self.control.ended(request_id)
        return [request_id.removeprefix("req-") for request_id in releases]

    def ends(self) -> list[tuple[str, LeaseState, str]]:
        ended = [event for event in self.reporter.events if isinstance(event, LeaseEnded)]
        return [(event.lease_id.removeprefix("lease-"), event.state, event.reason) for event in ended]
