"""Where vLLM keeps the classes that we touch, over all layouts: in the order of their inheritance."""

from tests.contract.releases.sources import CONNECTORS, Place

NIXL = f"{CONNECTORS}/nixl"
BASE = (Place(f"{CONNECTORS}/base.py", "KVConnectorBase_V1"),)
WORKER_META = (Place(f"{CONNECTORS}/base.py", "KVConnectorWorkerMetadata"),)
RESULTS = (Place(f"{CONNECTORS}/base.py", "KVConnectorTransferResults"),)
ROLES = (Place(f"{CONNECTORS}/base.py", "KVConnectorRole"),)
CONNECTOR_BASE_MODULE = (Place(f"{CONNECTORS}/base.py"),)
FACADE = tuple(
    Place(f"{NIXL}/connector.py", name) for name in ("NixlPullConnector", "NixlBaseConnector", "NixlConnector")
)
SCHEDULER = (
    Place(f"{NIXL}/pull_scheduler.py", "NixlPullConnectorScheduler"),
    Place(f"{NIXL}/base_scheduler.py", "NixlBaseConnectorScheduler"),
    Place(f"{NIXL}/scheduler.py", "NixlConnectorScheduler"),
)
WORKER = (
    Place(f"{NIXL}/pull_worker.py", "NixlPullConnectorWorker"),
    Place(f"{NIXL}/base_worker.py", "NixlBaseConnectorWorker"),
    Place(f"{NIXL}/worker.py", "NixlConnectorWorker"),
)
WORKER_MODULES = (Place(f"{NIXL}/base_worker.py"), Place(f"{NIXL}/worker.py"))
SPLIT_CLASSES = (Place(f"{NIXL}/pull_worker.py"), Place(f"{NIXL}/pull_scheduler.py"))
METADATA = f"{NIXL}/metadata.py"
READ_SPEC = (Place(f"{NIXL}/tp_mapping.py", "ReadSpec"),)
TP_MAPPING = (Place(f"{NIXL}/tp_mapping.py", "TPMapping"),)
STATS = (Place(f"{NIXL}/stats.py", "NixlKVConnectorStats"),)

CORE_SCHEDULER = (Place("vllm/v1/core/sched/scheduler.py", "Scheduler"),)
BLOCK_POOL = (Place("vllm/v1/core/block_pool.py", "BlockPool"),)
CACHE_MANAGER = (Place("vllm/v1/core/kv_cache_manager.py", "KVCacheManager"),)
CACHE_BLOCKS = (Place("vllm/v1/core/kv_cache_manager.py", "KVCacheBlocks"),)
CACHE_BLOCK = (Place("vllm/v1/core/kv_cache_utils.py", "KVCacheBlock"),)
CORE = (Place("vllm/v1/engine/core.py", "EngineCoreProc"),)
CORE_MESSAGES = (Place("vllm/v1/engine/__init__.py", "EngineCoreRequestType"),)
ENGINE_CORE = (Place("vllm/v1/engine/core.py", "EngineCore"),)
OUTPUT = (Place("vllm/v1/outputs.py", "KVConnectorOutput"),)
STEP = (Place("vllm/v1/core/sched/output.py", "SchedulerOutput"),)
REQUEST = (Place("vllm/v1/request.py", "Request"),)
STATUS = (Place("vllm/v1/request.py", "RequestStatus"),)
MIXIN = (Place("vllm/v1/worker/kv_connector_model_runner_mixin.py", "KVConnectorModelRunnerMixin"),)
CACHE_SPECS = (Place("vllm/v1/kv_cache_interface.py"),)
CACHE_GROUP = (Place("vllm/v1/kv_cache_interface.py", "KVCacheGroupSpec"),)
CACHE_CONFIG = (Place("vllm/v1/kv_cache_interface.py", "KVCacheConfig"),)
TRANSFER_CONFIG = (Place("vllm/config/kv_transfer.py", "KVTransferConfig"),)
PARALLEL_CONFIG = (Place("vllm/config/parallel.py", "ParallelConfig"),)
MODEL_CONFIG = (Place("vllm/config/model.py", "ModelConfig"),)
SPIN_CONDITION = (Place("vllm/distributed/device_communicators/shm_broadcast.py", "SpinCondition"),)
BROADCAST = (Place("vllm/distributed/device_communicators/shm_broadcast.py"),)
FACTORY = (Place("vllm/distributed/kv_transfer/kv_connector/factory.py", "KVConnectorFactory"),)
