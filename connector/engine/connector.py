"""The class that vLLM loads: ``kv_connector_module_path: connector.engine.connector``, ``kv_connector: NixlConnector``.

It is named like vLLM's own on purpose. vLLM tests the connector's *name* for the KV layout and other settings
(``config/vllm.py``, ``platforms/cpu.py``); any other name silently loses those. On a release that isn't supported the
import itself raises the one sentence that says so.
"""

import logging
from typing import Any

import vllm

from connector.engine.base_classes import FacadeBase, KVConnectorRole, init_facade, release_of
from connector.engine.cpu import apply_cpu_options
from connector.engine.options import parse_options
from connector.engine.scheduler import BackhaulScheduler
from connector.engine.worker import BackhaulWorker

logger = logging.getLogger("vllm.backhaul")


class NixlConnector(FacadeBase):
    """Façade: our scheduler half in the engine core, our worker half in each worker."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        from vllm.platforms import current_platform

        release = release_of(str(vllm.__version__))
        is_cpu = current_platform.device_type == "cpu"
        options = parse_options(vllm_config.kv_transfer_config, is_cpu=is_cpu)
        apply_cpu_options(options)
        init_facade(self, vllm_config, role, kv_cache_config)
        self._scheduler: BackhaulScheduler | None = None
        self._worker: BackhaulWorker | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = BackhaulScheduler(vllm_config, self.engine_id, kv_cache_config, options)
        else:
            self._worker = BackhaulWorker(vllm_config, self.engine_id, kv_cache_config, options)
        self.connector_scheduler, self.connector_worker = self._scheduler, self._worker
        logger.info(
            "Backhaul connector for %s (%s) on vLLM %s is ready.",
            options.engine_name,
            role.name.lower(),
            release.version,
        )

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        if self._scheduler is not None:
            self._scheduler.bind_kv_cache_manager(kv_cache_manager)

    def build_connector_worker_meta(self) -> Any:
        return self._worker.take_report() if self._worker is not None else None

    def has_pending_block_frees(self) -> bool:
        """Asked before a preemption: true while leases are on their way back, so that vLLM waits a step for them."""
        return self._scheduler is not None and self._scheduler.relieve()
