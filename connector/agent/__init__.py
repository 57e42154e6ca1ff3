"""The engine's sidecar: policy and commands in, events and spans out, and the lease feed for routers."""
