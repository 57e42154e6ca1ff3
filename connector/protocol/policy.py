"""The policy as it travels: resolved values and what one scope sets."""

from typing import Annotated

import msgspec

from connector.protocol.terms import NonNegative, Share, Value


class PolicyValues(Value, frozen=True):
    """The resolved policy of one enforcer. Field names, units and defaults are those of the operator's contract."""

    bidirectional_kv_xfer: bool = True
    kv_recompute_threshold: NonNegative = 64
    decoder_kv_blocks_ttl: NonNegative = 480
    kv_pull_deadline: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0
    kv_lease_duration: Annotated[int, msgspec.Meta(ge=1, le=86400)] = 30
    pinned_kv_limit: Share = 0.5
    release_on_read: bool = False
    decode_local_max_new_tokens: NonNegative = 0
    trace_sampling: Share = 1.0

    def __post_init__(self) -> None:
        if 0 < self.decoder_kv_blocks_ttl < MIN_TTL_SECONDS:
            raise ValueError(f"decoder_kv_blocks_ttl must be 0 or at least {MIN_TTL_SECONDS} seconds")


MIN_TTL_SECONDS = 10
"""Prefill declines a lease in its last 5 s, so a shorter TTL could never be used."""


class PolicyPatch(Value, frozen=True, omit_defaults=True):
    """What one scope sets; an absent field is inherited from the wider scope."""

    bidirectional_kv_xfer: bool | None = None
    kv_recompute_threshold: NonNegative | None = None
    decoder_kv_blocks_ttl: NonNegative | None = None
    kv_pull_deadline: Annotated[float, msgspec.Meta(gt=0, le=3600)] | None = None
    kv_lease_duration: Annotated[int, msgspec.Meta(ge=1, le=86400)] | None = None
    pinned_kv_limit: Share | None = None
    release_on_read: bool | None = None
    decode_local_max_new_tokens: NonNegative | None = None
    trace_sampling: Share | None = None

    def __post_init__(self) -> None:
        ttl = self.decoder_kv_blocks_ttl
        if ttl is not None and 0 < ttl < MIN_TTL_SECONDS:
            raise ValueError(f"decoder_kv_blocks_ttl must be 0 or at least {MIN_TTL_SECONDS} seconds")

    def apply_to(self, values: PolicyValues) -> PolicyValues:
        changed = {f: v for f in self.__struct_fields__ if (v := getattr(self, f)) is not None}
        return msgspec.structs.replace(values, **changed)
