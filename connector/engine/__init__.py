"""The part of Backhaul that runs inside vLLM: verified reuse, leases, the fence and live policy.

Layers: ``connector`` (façade vLLM loads) → ``scheduler`` / ``worker`` (one per vLLM process) → pure modules
(``digests``, ``offers``, ``matching``, ``leases``, ``policy``). ``versions``, ``base_classes`` and ``older_*`` hold
what depends on vLLM's version, ``cpu`` what only engines on CPUs need.
"""

__version__ = "0.1.0"
