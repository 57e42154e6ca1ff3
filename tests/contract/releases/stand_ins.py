"""A pytest plugin: lets a release be imported without its compiled extension and without what only models need."""

import dataclasses
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

import pytest


class StandIn(types.ModuleType):
    """Has every name; nothing of it is ever called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


if importlib.util.find_spec("gguf") is None:
    # Releases before 0.25 import it for a file format of models.
    sys.modules |= {name: StandIn(name) for name in ("gguf", "gguf.constants", "gguf.quants")}


@pytest.fixture(scope="session", autouse=True)
def _described_model() -> None:
    """vLLM would import the model's own code in another process to learn what kind of model it is."""
    from vllm.model_executor.models import registry

    known = {"architecture": "Qwen3ForCausalLM", "is_text_generation_model": True, "attn_type": "decoder"}
    pooling = {"default_seq_pooling_type": "LAST", "default_tok_pooling_type": "ALL", "default_pooling_type": "LAST"}
    fields = [field.name for field in dataclasses.fields(registry._ModelInfo)]
    described = registry._ModelInfo(**{name: {**known, **pooling}.get(name, False) for name in fields})
    registry._LazyRegisteredModel.inspect_model_cls = lambda _model: described
