import enum
from abc import ABC


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class SupportsHMA(ABC):  # noqa: B024 - as vLLM has it
    pass


class KVConnectorMetadata(ABC):  # noqa: B024 - as vLLM has it
    pass


class KVConnectorWorkerMetadata(ABC):  # noqa: B024 - as vLLM has it
    def aggregate(self, other):
        raise NotImplementedError


class KVConnectorBase_V1(ABC):  # noqa: B024, N801 - as vLLM has it
    def __init__(self, vllm_config, role, kv_cache_config=None):
        self._vllm_config = vllm_config
        self._role = role
        self._connector_metadata = None

    def bind_connector_metadata(self, connector_metadata):
        self._connector_metadata = connector_metadata

    def build_connector_worker_meta(self):
        return None

    def get_finished(self, finished_req_ids):
        return None, None

    def get_block_ids_with_load_errors(self):
        return set()

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        raise NotImplementedError

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        raise NotImplementedError

    def build_connector_meta(self, scheduler_output):
        raise NotImplementedError

    def update_connector_output(self, connector_output):
        return

    def set_xfer_handshake_metadata(self, metadata):
        return
