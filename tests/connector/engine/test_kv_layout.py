"""What an offer says of its source's cache is what vLLM's own handshake would compare."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from connector.engine.kv_layout import KvLayout, describe_reader, layout_of
from connector.engine.refusals import Reader
from connector.protocol import Role


def a_payload(**facts: Any) -> Any:
    return SimpleNamespace(compatibility_hash="abc", agent_metadata_bytes=msgspec.msgpack.encode(facts))


def test_the_layout_is_read_from_the_handshakes_payload() -> None:
    payload = a_payload(engine_id="x", kv_cache_layout="LBHNC", block_lens=[1024, 1024], agent_metadata=b"opaque")
    assert layout_of(payload) == KvLayout("abc", "LBHNC", 2048)


def test_what_a_release_does_not_state_stays_unknown() -> None:
    assert layout_of(a_payload(engine_id="x")) == KvLayout("abc", "", 0)


def test_a_payload_of_another_shape_is_an_error_for_the_caller() -> None:
    with pytest.raises(msgspec.MsgspecError):
        layout_of(a_payload(kv_cache_layout=7))


@pytest.mark.parametrize(
    ("extra", "model", "expected"),
    [
        ({}, {}, (True, False)),
        ({"enforce_handshake_compat": False}, {"use_mla": True}, (False, True)),
    ],
)
def test_a_reader_is_described_by_vllms_configuration(
    extra: dict[str, Any], model: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    transfer = SimpleNamespace(get_from_extra_config=extra.get, enable_permute_local_kv=True)
    config = SimpleNamespace(
        kv_transfer_config=transfer,
        model_config=SimpleNamespace(**model),
        parallel_config=SimpleNamespace(decode_context_parallel_size=2),
    )
    reader = Reader(role=Role.DECODE, fingerprint=b"f", block_size=32)
    describe_reader(reader, SimpleNamespace(vllm_config=config, transfer_tp_size=4))
    assert (reader.tp_size, reader.dcp_size, reader.permutes) == (4, 2, True)
    assert (reader.checks_build, reader.ignores_memory_order) == expected
