"""Which policy applies to one request.

The control plane resolves fleet, model, role and engine scopes for each engine and pushes them to it. Tenant and
session are narrower and known only here, so they travel in the signed envelope; model doesn't, because an engine's own
scope is narrower than its model's and the envelope would override it. The router's own switches use all of
fleet, model, tenant and session.
"""

from connector.protocol import FleetSnapshot, PolicyPatch, PolicyValues

REQUEST_FIELDS = (
    "bidirectional_kv_xfer",
    "kv_recompute_threshold",
    "decoder_kv_blocks_ttl",
    "kv_pull_deadline",
    "kv_lease_duration",
    "release_on_read",
)
"""Fields that mean something for one request; the others govern an engine or a router as a whole."""


def merge_patches(*patches: PolicyPatch | None) -> PolicyPatch | None:
    """Request-level fields of the patches, a later one over an earlier one; absent when none is set."""
    merged: dict[str, object] = {}
    for patch in patches:
        if patch is None:
            continue
        for name in REQUEST_FIELDS:
            value = getattr(patch, name)
            if value is not None:
                merged[name] = value
    return PolicyPatch(**merged) if merged else None  # type: ignore[arg-type]


def resolve_for_router(snapshot: FleetSnapshot, model: str, tenant: str, session_id: str) -> PolicyValues:
    """What the router itself obeys for a request: fleet, then model, tenant and session."""
    values = snapshot.values
    for patch in (
        snapshot.model_patches.get(model),
        snapshot.tenant_patches.get(tenant),
        snapshot.session_patches.get(session_id),
    ):
        if patch is not None:
            values = patch.apply_to(values)
    return values


def patch_for_engines(snapshot: FleetSnapshot, tenant: str, session_id: str) -> PolicyPatch | None:
    """What the envelope tells the engines: tenant, then session."""
    return merge_patches(snapshot.tenant_patches.get(tenant), snapshot.session_patches.get(session_id))
