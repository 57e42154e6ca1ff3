"""The class that vLLM loads: ``kv_connector_module_path: connector.engine.connector``, ``kv_connector: NixlConnector``.

It is named like vLLM's own on purpose. vLLM tests the connector's *name* for the KV layout and other settings
(``config/vllm.py``, ``platforms/cpu.py``); any other name silently loses those.
"""

import logging
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole, KVConnectorWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlBaseConnector, NixlPullConnector
from vllm.platforms import current_platform

from connector.engine.compat import require_supported_vllm
from connector.engine.cpu import apply_cpu_options
from connector.engine.options import parse_options
from connector.engine.scheduler import BackhaulScheduler
from connector.engine.worker import BackhaulWorker

logger = logging.getLogger("vllm.backhaul")


class NixlConnector(NixlPullConnector):
    """Façade: our scheduler half in the engine core, our worker half in each worker."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        require_supported_vllm(str(vllm.__version__))
        is_cpu = current_platform.device_type == "cpu"
        options = parse_options(vllm_config.kv_transfer_config, is_cpu=is_cpu)
        apply_cpu_options(options)
        # Not NixlPullConnector's: that would create vLLM's own scheduler or NIXL agent first.
        NixlBaseConnector.__init__(self, vllm_config, role, kv_cache_config)
        self._scheduler: BackhaulScheduler | None = None
        self._worker: BackhaulWorker | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = BackhaulScheduler(vllm_config, self.engine_id, kv_cache_config, options)
        else:
            self._worker = BackhaulWorker(vllm_config, self.engine_id, kv_cache_config, options)
        self.connector_scheduler, self.connector_worker = self._scheduler, self._worker
        logger.info("Backhaul connector for %s (%s) is ready.", options.engine_name, role.name.lower())

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        if self._scheduler is not None:
            self._scheduler.bind_kv_cache_manager(kv_cache_manager)

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return self._worker.take_report() if self._worker is not None else None

    def has_pending_block_frees(self) -> bool:
        """True while released leases are on their way back: vLLM then waits a step instead of preempting a request."""
        return self._scheduler is not None and self._scheduler.control.num_ending > 0
