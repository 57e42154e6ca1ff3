"""What a LoRA adapter's name stands for on this host: a stamp of its files, as long as they stay what was loaded."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from connector.engine.samples import sample_of

logger = logging.getLogger("vllm.backhaul.adapters")

CONFIG_NAME = "adapter_config.json"
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt")
PLACE_FIELD = "base_model_name_or_path"
"""Says where the base model lay when the adapter was made; no part of the adapter."""

RECHECK_SECONDS = 1.0
MAX_ADAPTERS = 4096

Signature = tuple[tuple[str, int, int], ...]
"""(name, bytes, modification time in ns) of each file."""


class _Known(msgspec.Struct):
    signature: Signature
    stamp: bytes | None
    checked_at: float


class AdapterStamps:
    """Scheduler thread only. An adapter is stamped when its first request arrives, and looked at once a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[int, str, str], _Known] = {}

    def of(self, adapter: Any) -> bytes | None:
        """Equal on two hosts for equal files. ``None``: they changed after vLLM loaded them, or can't be read.

        A loaded adapter keeps its number; vLLM gives a new one when it is unloaded and loaded again. A name that is no
        local folder has nothing to stamp. ``adapter``: vLLM's ``LoRARequest``, or ``None``, whose stamp is empty.
        """
        if adapter is None:
            return b""
        key = (int(adapter.lora_int_id), str(adapter.lora_name), str(adapter.lora_path))
        known = self._known.get(key)
        if known is None:
            known = self._first_seen(key)
        elif known.stamp is not None and self._clock() - known.checked_at >= RECHECK_SECONDS:
            self._recheck(known, Path(key[2]))
        return known.stamp

    def _first_seen(self, key: tuple[int, str, str]) -> _Known:
        if len(self._known) >= MAX_ADAPTERS:
            del self._known[next(iter(self._known))]
        folder = Path(key[2])
        try:
            known = _Known(_signature(folder), _stamp(folder), self._clock())
        except (OSError, ValueError) as error:
            logger.warning("Adapter %s can't be read (%s); its KV is not reused.", key[1], error)
            known = _Known((), None, self._clock())
        self._known[key] = known
        return known

    def _recheck(self, known: _Known, folder: Path) -> None:
        known.checked_at = self._clock()
        try:
            is_same = _signature(folder) == known.signature
        except OSError:
            is_same = False
        if not is_same:
            logger.warning("The files of adapter %s changed after it was loaded; its KV is not reused.", folder.name)
            known.stamp = None


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES or path.name == CONFIG_NAME)


def _signature(folder: Path) -> Signature:
    stats = [(path.name, path.stat()) for path in _files(folder)]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def _stamp(folder: Path) -> bytes:
    """Raises ``OSError`` or ``ValueError``."""
    files = _files(folder)
    weights = sample_of(path for path in files if path.name != CONFIG_NAME)
    config = [json.loads(path.read_text()) for path in files if path.name == CONFIG_NAME]
    for described in config:
        described.pop(PLACE_FIELD, None)
    return weights + json.dumps(config, sort_keys=True).encode()
