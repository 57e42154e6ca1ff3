"""Our worker half as vLLM's tests build and call it, with a fence that vLLM's fake NIXL can answer."""

import ctypes
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock, patch

from suite_router import GENERATION

from connector.engine.metadata import FenceTarget, SchedulerOrders
from connector.engine.nixl_agent import FencedNixlAgent
from connector.engine.worker import BackhaulWorker

DEADLINE_SECONDS = 60.0
NO_ORDERS: dict[str, Any] = {
    "pull_deadline_seconds": DEADLINE_SECONDS,
    "lease_extension_seconds": 20,
}


class AnyTarget(dict[str, FenceTarget]):
    """Every request's source says that its lease is still held."""

    def get(self, _request_id: str, _default: Any = None) -> FenceTarget:
        return FenceTarget(dict.fromkeys(range(64), 0x1000), GENERATION)


class Spied:
    """A call of ours, and all else of the mock that it ends at."""

    def __init__(self, ours: Callable[..., Any], scripted: Mock) -> None:
        self._ours = ours
        self._scripted = scripted

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._ours(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scripted, name)


class TransparentAgent(FencedNixlAgent):
    """Our agent where tests take it for the one it wraps: they check its type and script its attributes."""

    def __init__(self, agent: Any, *arguments: Any) -> None:
        if not hasattr(agent, "initialize_xfer"):
            answer_fences(agent)
        super().__init__(agent, *arguments)
        self.__dict__["fence_targets"] = AnyTarget()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__dict__["_agent"]) if "_agent" in self.__dict__ else TransparentAgent

    def __getattribute__(self, name: str) -> Any:
        """Where a test has scripted a mock, its own attributes stay in reach of what runs our code."""
        value = super().__getattribute__(name)
        if name.startswith("_") or not callable(value):
            return value
        scripted = getattr(super().__getattribute__("_agent"), name, None)
        return Spied(value, scripted) if isinstance(scripted, Mock) else value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_agent"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        inner = self.__dict__.get("_agent")
        if inner is not None and name not in self.__dict__ and hasattr(inner, name):
            setattr(inner, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            super().__delattr__(name)
        else:
            delattr(self._agent, name)


def answer_fences(nixl: Any) -> None:
    """vLLM's fake moves no data and knows no single READs: the word read is the one expected."""

    def initialize_xfer(_operation: str, local: Any, *_: Any) -> object:
        ctypes.c_uint64.from_address(local[0][0]).value = GENERATION
        return object()

    def get_xfer_descs(regions: Any, memory_type: str) -> Any:
        return regions if len(regions) == 1 and regions[0][1] == 8 else described(regions, memory_type)

    described = nixl.get_xfer_descs
    nixl.initialize_xfer, nixl.get_xfer_descs = initialize_xfer, get_xfer_descs


class SuiteWorker(BackhaulWorker):
    options_of: Callable[[Any], Any]

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any = None, options: Any = None) -> None:
        self._is_built = True
        options = options or self.options_of(vllm_config.kv_transfer_config)
        super().__init__(vllm_config, engine_id, kv_cache_config, options)

    def __getattr__(self, name: str) -> Any:
        """Some tests skip every ``__init__`` and set only vLLM's fields; ours are built then."""
        if name.startswith("__") or "_is_built" in self.__dict__:
            raise AttributeError(name)
        from tests.v1.kv_connector.unit.utils import create_vllm_config, make_kv_cache_config  # vLLM's, not ours

        set_by_test = {"kv_cache_config": make_kv_cache_config(block_size=16), **self.__dict__}
        vllms = next(kind for kind in BackhaulWorker.__mro__ if kind.__module__.startswith("vllm."))
        with patch.object(vllms, "__init__", lambda *_arguments, **_named: None):
            SuiteWorker.__init__(self, create_vllm_config(), "suite")
        ours = {"nixl_wrapper"} & set_by_test.keys()
        self.__dict__.update({name: value for name, value in set_by_test.items() if name not in ours})
        return getattr(self, name)

    def start_load_kv(self, metadata: Any) -> None:
        """Metadata that a test made itself carries no orders of our scheduler half."""
        if not hasattr(metadata, "orders"):
            metadata.orders = SchedulerOrders(**NO_ORDERS)
        super().start_load_kv(metadata)
