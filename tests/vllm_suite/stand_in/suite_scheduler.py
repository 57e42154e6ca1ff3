"""Our scheduler half as vLLM's tests build and call it."""

from collections.abc import Callable
from typing import Any

import msgspec
import suite_router as router

from connector.engine.scheduler import BackhaulScheduler
from connector.protocol import LeaseOffer, Role

FENCE_ADDRESS = 0x1000
PARTS_OF_ROLE = ("role", "matcher", "factory", "control", "demand")


class SuiteScheduler(BackhaulScheduler):
    """Signs what a test writes in the clear. One instance plays P or D, as each request needs: so do vLLM's tests."""

    options_of: Callable[[Any], Any]

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any, options: Any = None) -> None:
        self._introduced: set[str] = set()
        self._offered: list[LeaseOffer] = []
        options = options or self.options_of(vllm_config.kv_transfer_config)
        super().__init__(vllm_config, engine_id, kv_cache_config, options)
        flipped = msgspec.structs.replace(options, is_prefill=not options.is_prefill)
        self._twin = BackhaulScheduler(vllm_config, engine_id, kv_cache_config, flipped)
        self._twin.control.reporter = self.reporter
        self._parts = {side.role: {name: getattr(side, name) for name in PARTS_OF_ROLE} for side in (self, self._twin)}
        for parts in self._parts.values():
            parts["factory"].fence_address_of_rank[0] = FENCE_ADDRESS
        self._hear(self.reporter)

    def _hear(self, reporter: Any) -> None:
        send = reporter.send

        def heard(message: Any) -> None:
            if isinstance(message, LeaseOffer):
                self._offered.append(message)
            send(message)

        reporter.send = heard

    def __getattr__(self, name: str) -> Any:
        """Some tests skip every ``__init__`` and set only vLLM's fields; the others are built then."""
        if name.startswith("__") or "_introduced" in self.__dict__:
            raise AttributeError(name)
        from tests.v1.kv_connector.unit.utils import create_vllm_config  # vLLM's, not ours

        set_by_test = dict(self.__dict__)
        self.__init__(create_vllm_config(), "suite", set_by_test["kv_cache_config"])  # type: ignore[misc]
        self.__dict__.update(set_by_test)
        return getattr(self, name)

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._twin.control.bind(kv_cache_manager.block_pool)

    # ------------------------------------------------ a request

    def _introduce(self, request: Any) -> None:
        params = request.kv_transfer_params
        if not params or request.request_id in self._introduced:
            return
        self._introduced.add(request.request_id)
        role = Role.PREFILL if params.get("do_remote_decode") else Role.DECODE
        for name, part in self._parts[role].items():
            setattr(self, name, part)
        router.sign(params, request, self)

    def _open_late(self, request: Any) -> None:
        """A test may call any hook first."""
        if request.kv_transfer_params and request.request_id not in self._introduced:
            self._introduce(request)
            self._open_leg(request)

    def on_new_request(self, request: Any) -> None:
        self._introduce(request)
        super().on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        self._open_late(request)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._open_late(request)
        leg = self.legs.get(request.request_id)
        if num_external_tokens > 0 and leg is not None and leg.source is not None and leg.match is None:
            # The test has put its own answer in the place of our matching hook; the blocks are still the offer's.
            num_blocks = max(map(len, leg.source.block_ids))
            request.kv_transfer_params.update(leg.source.remote_params(num_blocks, num_external_tokens))
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        self._open_late(request)
        if request.request_id in self.legs:
            self.fence.raise_word(request.request_id)
        self._offered.clear()
        is_kept, answer = super().request_finished(request, block_ids)
        token = self._offered[-1].offer if self._offered else None
        return is_kept, router.in_the_clear(answer, token, self)

    def set_xfer_handshake_metadata(self, metadata: dict[tuple[int, int], Any]) -> None:
        for payload in metadata.values():
            if not hasattr(payload, "fence_address"):
                payload.fence_address = FENCE_ADDRESS
        super().set_xfer_handshake_metadata(metadata)
