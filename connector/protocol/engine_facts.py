"""What is said of an engine: fixed facts at its start, gauges while it runs."""

from connector.protocol.terms import Name, Role, Value


class EngineInfo(Value, frozen=True):
    """What an engine says of itself; ``incarnation`` is vLLM's engine id, new at every start."""

    name: Name
    incarnation: str
    role: Role
    model: str
    block_size: int
    num_blocks: int
    bytes_per_block: int
    kv_dtype: str
    vllm_version: str
    connector_version: str
    unsupported_fields: tuple[str, ...] = ()


class EngineLoad(Value, frozen=True):
    """Gauges sampled once a second; block counts are KV blocks of the whole engine.

    Of session leases: ``num_unread_blocks`` are held by leases that no pull has read so far, shared ones counted per
    lease; ``unread_block_seconds`` is what leases cost, since the engine's start, that ended without a read.
    ``refused_offers``: offers of other engines that were not used since the start, by the engine's own reason.
    ``num_contained``: exceptions in hooks of ours since the start, workers' included, that vLLM would have died of.
    """

    num_free_blocks: int
    num_blocks: int
    num_leases: int
    num_leased_blocks: int
    num_quarantined_blocks: int
    num_running: int
    num_waiting: int
    num_dropped_events: int
    num_unread_blocks: int = 0
    unread_block_seconds: float = 0.0
    refused_offers: dict[str, int] = {}
    num_contained: int = 0
