"""vLLM's own pull connector with our two CPU options and nothing else.

Untouched, the stock pair's busy loops starve a machine of two cores (a prefill of 2,200 tokens took 19 s instead of
0.5 s), so a comparison would measure those and not the transfer.
"""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector

from connector.engine.cpu import calm_broadcast, stop_progress_thread


class NixlConnector(NixlPullConnector):  # type: ignore[misc]  # vLLM is not in this environment
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        stop_progress_thread()
        calm_broadcast(pause_ms=0.1)
        super().__init__(vllm_config, role, kv_cache_config)
