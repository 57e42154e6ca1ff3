"""The operator's contract: a lease costs at most 512 bytes and 24 more a block, all that both halves keep for it."""

import pytest

from tests.load.bench_leases import BYTES_PER_BLOCK, BYTES_PER_LEASE, measure


@pytest.mark.parametrize("num_blocks", [1, 12])
def test_a_full_table_of_leases_keeps_to_the_bound(num_blocks: int) -> None:
    cost = measure(num_blocks)
    assert 0 < cost.worker < cost.scheduler
    assert cost.total <= BYTES_PER_LEASE + BYTES_PER_BLOCK * num_blocks
