"""Digests of what each process imports from this checkout: a change restarts it at the next ``make up``."""

from deploy.local.layout import Layout
from deploy.local.stamps import digest_of

PROCESS_PACKAGES = frozenset({"agent", "engine", "router"})
"""Packages of ``connector`` that one kind of process imports; the rest is shared, the wire contract above all."""


def sources_of(layout: Layout, package: str, *extra: str) -> str:
    """``package`` is a folder of the checkout, such as ``connector/agent``."""
    connector = layout.root / "connector"
    shared = [path for path in sorted(connector.iterdir()) if path.name not in PROCESS_PACKAGES]
    return digest_of([layout.root / package, *shared], *extra)
