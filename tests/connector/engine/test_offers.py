"""What vLLM is told of a verified offer, and nothing else."""

import msgspec
import pytest

from connector.engine.offers import FenceWord, KvOffer
from connector.protocol import Role
from tests.connector.engine.builders import an_offer

TWO_GROUPS = ((100, 101, 102), (7, 8, 9))


def test_remote_params_name_the_source_as_vllm_expects_it() -> None:
    offer = an_offer(range(10))
    assert offer.remote_params(2, 8) == {
        "remote_engine_id": "d-0-boot",
        "remote_request_id": "req-d",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_block_ids": [[100, 101]],
        "remote_num_tokens": 8,
        "remote_blocks_expiry_time": offer.expires_at_source,
    }


@pytest.mark.parametrize(
    ("num_blocks", "expected"),
    [
        (0, [[], []]),
        (1, [[100], [7]]),
        (2, [[100, 101], [7, 8]]),
        (3, [[100, 101, 102], [7, 8, 9]]),
        (4, [[100, 101, 102], [7, 8, 9]]),
    ],
)
def test_every_group_is_cut_to_the_first_blocks(num_blocks: int, expected: list[list[int]]) -> None:
    """vLLM keeps the *last* blocks that it is given, so the cut must be ours."""
    offer = an_offer(range(12), block_ids=TWO_GROUPS[0])
    offer = msgspec.structs.replace(offer, block_ids=TWO_GROUPS)
    assert offer.remote_params(num_blocks, 0)["remote_block_ids"] == expected


def test_cutting_leaves_the_offer_as_it_was() -> None:
    offer = an_offer(range(8))
    offer.remote_params(1, 4)["remote_block_ids"][0].append(999)
    assert offer.block_ids == ((100, 101),)


def test_endpoint_params_name_no_blocks() -> None:
    offer = an_offer(range(8))
    params = offer.endpoint_params()
    assert params["remote_block_ids"] == []
    assert params["remote_num_tokens"] == 0
    assert (params["remote_engine_id"], params["remote_host"], params["remote_port"]) == ("d-0-boot", "127.0.0.1", 5600)


def test_a_handoff_has_no_expiry() -> None:
    offer = an_offer(range(8), role=Role.PREFILL, expires_at_source=None)
    assert offer.remote_params(2, 8)["remote_blocks_expiry_time"] is None


def test_an_offer_survives_the_wire_unchanged() -> None:
    offer = an_offer(range(11), fence_words=(FenceWord(0, 2**47), FenceWord(3, 8)), fence_generation=2**63 + 1)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(offer), type=KvOffer) == offer
