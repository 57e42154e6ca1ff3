"""A fake engine behind a real link, and what its messages look like."""

import time
from pathlib import Path

from connector.engine.link import LinkCallbacks
from connector.engine.policy import LivePolicy
from connector.protocol import (
    PROTOCOL_VERSION,
    EngineEvent,
    EngineHello,
    EngineInfo,
    EngineLoad,
    LeaseEnded,
    LeaseOffer,
    LeaseState,
    PolicyValues,
    Role,
)
from tests.connector.engine.builders import a_factory, a_lease
from tests.connector.engine.link_client import LinkClient


class FakeEngine:
    """What the link asks of an engine, without one: no scheduler ever steps here."""

    def __init__(self) -> None:
        self.policy = LivePolicy(PolicyValues())
        self.held = [a_lease("a"), a_lease("b")]

    def callbacks(self) -> LinkCallbacks:
        return LinkCallbacks(
            hello=self.hello,
            held_leases=lambda: [offer_of(lease.lease_id) for lease in self.held],
            set_policy=lambda message: self.policy.set(message.revision, message.values),
            load=load,
            is_known=lambda key: any(key in (lease.lease_id, lease.request_id) for lease in self.held),
        )

    def hello(self) -> EngineHello:
        info = EngineInfo(
            name="d-0",
            incarnation="boot-1",
            role=Role.DECODE,
            model="m",
            block_size=32,
            num_blocks=100,
            bytes_per_block=1,
            kv_dtype="auto",
            vllm_version="0.32.0",
            connector_version="0.1.0",
        )
        return EngineHello(
            protocol=PROTOCOL_VERSION, engine=info, policy=self.policy.applied(), num_leases=len(self.held)
        )


def load(num_dropped_events: int) -> EngineLoad:
    return EngineLoad(
        num_free_blocks=50,
        num_blocks=100,
        num_leases=2,
        num_leased_blocks=4,
        num_quarantined_blocks=0,
        num_running=0,
        num_waiting=0,
        num_dropped_events=num_dropped_events,
    )


def offer_of(lease_id: str, remaining_seconds: float = 480.0, offer: str = "token") -> LeaseOffer:
    lease = a_lease("a", deadline=time.perf_counter() + remaining_seconds, lease_id=lease_id)
    return LeaseOffer(lease=a_factory().granted(lease), offer=offer)


def ended(lease_id: str) -> EngineEvent:
    return EngineEvent(age_ms=5.0, event=LeaseEnded(lease_id=lease_id, state=LeaseState.EXPIRED, reason="ttl"))


def connected(path: Path) -> LinkClient:
    """A client that has read the hello and both held leases."""
    client = LinkClient(path)
    client.receive(EngineHello)
    client.receive(LeaseOffer)
    client.receive(LeaseOffer)
    return client
