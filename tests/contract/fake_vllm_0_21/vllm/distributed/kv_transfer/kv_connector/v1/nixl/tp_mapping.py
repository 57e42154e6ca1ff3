from dataclasses import dataclass
from typing import Any


@dataclass
class ReadSpec:
    remote_rank: int
    local_block_ids: Any
    remote_block_ids: Any


@dataclass
class TPMapping:
    all_source_ranks: tuple[int, ...]
