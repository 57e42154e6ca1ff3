"""vLLM's classes that ours extend, as the installed release lays them out; nothing else of ours names them.

Importing it checks the release: on one that isn't supported it raises the one sentence of ``versions``.
"""

import importlib
from typing import Any

import vllm

from connector.engine.cache_shape import CacheShape
from connector.engine.older_facade import FacadeOfRanksWithoutStages, LateArrivals, OlderFacadeSeams
from connector.engine.older_scheduler import (
    OlderSchedulerSeams,
    RanksWithoutStages,
    WithoutLeaseTimes,
    one_plain_group,
)
from connector.engine.older_worker import OlderWorkerSeams, OrderedReaper, ReplacedPeers
from connector.engine.versions import RELEASES, Release, require_release

CONNECTORS = "vllm.distributed.kv_transfer.kv_connector.v1"
NIXL = f"{CONNECTORS}.nixl"
SEAMS_OF_NEWEST = (
    f"{CONNECTORS}.base:KVConnectorRole",
    f"{CONNECTORS}.base:KVConnectorTransferResults",
    f"{NIXL}.connector:NixlPullConnector.start_load_kv",
    f"{NIXL}.pull_scheduler:NixlPullConnectorScheduler.request_finished",
    f"{NIXL}.pull_scheduler:NixlPullConnectorScheduler.update_connector_output",
    f"{NIXL}.pull_worker:NixlPullConnectorWorker._read_blocks",
    f"{NIXL}.pull_worker:NixlPullConnectorWorker._handle_failed_transfer",
    f"{NIXL}.pull_worker:NixlPullConnectorWorker.get_transfer_results",
    f"{NIXL}.metadata:NixlHandshakePayload",
)
"""Looked up only to tell which seam moved first in a release that isn't supported."""


def release_of(version: str) -> Release:
    """Raises ``UnsupportedReleaseError``, with the first seam that is gone where that can be told."""
    known = version.split("+", maxsplit=1)[0] in RELEASES
    return require_release(version, "" if known else first_moved_seam())


def first_moved_seam() -> str:
    for path in SEAMS_OF_NEWEST:
        module_name, _, qualified = path.partition(":")
        try:
            target: Any = importlib.import_module(module_name)
            for name in qualified.split("."):
                target = getattr(target, name)
        except (ImportError, AttributeError):
            return path
    return ""


RELEASE = release_of(str(vllm.__version__))


def _vllms(module_name: str, class_name: str) -> Any:
    return getattr(importlib.import_module(f"{NIXL}.{module_name}"), class_name)


def _extended(base: Any, *seams: type | None) -> Any:
    """vLLM's class, with what it lacks of the newest layout before it; vLLM's class itself where it lacks nothing."""
    mixins = [seam for seam in seams if seam is not None]
    return type(base.__name__, (*mixins, base), {"__module__": __name__}) if mixins else base


def _unless(has: bool, seam: type) -> type | None:
    return None if has else seam


_IS_SPLIT = RELEASE.has_split_classes
KVConnectorRole: Any = importlib.import_module(f"{CONNECTORS}.base").KVConnectorRole
KVConnectorBase: Any = importlib.import_module(f"{CONNECTORS}.base").KVConnectorBase_V1
WORKER_MODULES: tuple[Any, ...] = tuple(
    importlib.import_module(f"{NIXL}.{name}") for name in (("base_worker", "pull_worker") if _IS_SPLIT else ("worker",))
)
AGENT_CONFIG_MODULE = WORKER_MODULES[0]
"""Where vLLM's worker half looks up ``nixl_agent_config``."""

VllmFacade = _vllms("connector", "NixlPullConnector" if _IS_SPLIT else "NixlConnector")
VllmScheduler = (
    _vllms("pull_scheduler", "NixlPullConnectorScheduler")
    if _IS_SPLIT
    else _vllms("scheduler", "NixlConnectorScheduler")
)
VllmWorker = _vllms("pull_worker", "NixlPullConnectorWorker") if _IS_SPLIT else _vllms("worker", "NixlConnectorWorker")

FacadeBase: Any = _extended(
    VllmFacade,
    _unless(RELEASE.hears_arrivals, LateArrivals),
    _unless(RELEASE.keys_ranks_by_stage, FacadeOfRanksWithoutStages),
    _unless(RELEASE.reports_failed_receives, OlderFacadeSeams),
)
SchedulerBase: Any = _extended(
    VllmScheduler,
    _unless(RELEASE.reports_failed_receives, OlderSchedulerSeams),
    _unless(RELEASE.keys_ranks_by_stage, RanksWithoutStages),
    _unless(RELEASE.hears_arrivals, WithoutLeaseTimes),
)
WorkerBase: Any = _extended(
    VllmWorker,
    _unless(RELEASE.reports_failed_receives, OlderWorkerSeams),
    OrderedReaper if RELEASE.reports_failed_receives and not RELEASE.reaps_in_any_order else None,
    ReplacedPeers if hasattr(VllmWorker, "_cleanup_replaced_remote_engines") else None,
)


def init_facade(facade: Any, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
    """vLLM's part of the façade's construction, without its own scheduler half or NIXL agent: ours take their place."""
    if _IS_SPLIT:
        _vllms("connector", "NixlBaseConnector").__init__(facade, vllm_config, role, kv_cache_config)
        return
    KVConnectorBase.__init__(facade, vllm_config, role, kv_cache_config)
    facade.kv_cache_config = kv_cache_config
    facade.engine_id = vllm_config.kv_transfer_config.engine_id
    facade.kv_transfer_config = vllm_config.kv_transfer_config
    facade._arrived = set()


def readable(shape: CacheShape) -> CacheShape:
    """What of a model's cache can be read exactly, and given back safely when a receive fails, on this release."""
    return shape if RELEASE.spares_last_tokens else one_plain_group(shape)


def rank_key(rank: int) -> tuple[int, int] | int:
    """How vLLM's table of remote agents names a tensor rank of the first pipeline stage."""
    return (0, rank) if RELEASE.keys_ranks_by_stage else rank


def num_consumers(worker: Any, plan: Any) -> int:
    """How many notices a source waits for: its readers' ranks; before 0.29 it works that out from the world size."""
    consumers: int = plan.local_consumers if hasattr(plan, "local_consumers") else worker.world_size
    return consumers
