"""The engine link's frame codec: any cut of the stream gives the same messages, and bad frames are refused."""

import random

import pytest

from connector.framing import MAX_FRAME_BYTES, FrameDecoder, encode_frame
from connector.protocol import AgentToEngine, Message, Ping, PolicyValues, ReleaseLease, SetPolicy

MESSAGES: list[Message] = [
    Ping(nonce=7),
    SetPolicy(revision=3, values=PolicyValues(kv_recompute_threshold=96)),
    ReleaseLease(command_id="c1", key="lease-" + "x" * 70_000),
    Ping(nonce=8),
]


def decoder() -> FrameDecoder[AgentToEngine]:
    return FrameDecoder(AgentToEngine)


def test_every_cut_of_a_short_stream_yields_the_same_messages() -> None:
    stream = encode_frame(Ping(nonce=1)) + encode_frame(Ping(nonce=2))
    for cut in range(len(stream) + 1):
        reader = decoder()
        assert reader.feed(stream[:cut]) + reader.feed(stream[cut:]) == [Ping(nonce=1), Ping(nonce=2)]


@pytest.mark.parametrize("seed", range(20))
def test_random_chunks_of_a_long_stream_yield_every_message_once(seed: int) -> None:
    source = random.Random(seed)
    stream = b"".join(encode_frame(message) for message in MESSAGES)
    reader, received, position = decoder(), [], 0
    while position < len(stream):
        size = source.choice([1, 3, 100, 30_000])
        received += reader.feed(stream[position : position + size])
        position += size
    assert received == MESSAGES


def test_header_is_a_big_endian_length() -> None:
    frame = encode_frame(Ping(nonce=1))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4


def test_oversize_header_is_refused_before_its_body_arrives() -> None:
    with pytest.raises(ValueError, match="exceeds"):
        decoder().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))


def test_oversize_message_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="exceeds"):
        encode_frame(ReleaseLease(command_id="c", key="x" * (MAX_FRAME_BYTES + 1)))


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\xff" * 9, b"\x81\xa4type\xa7Unknown", b"\x82\xa4type\xa4Ping\xa5nonce\xa1x", b"\x91" * 5000],
)
def test_garbage_and_foreign_messages_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        decoder().feed(len(body).to_bytes(4, "big") + body)


def test_invalid_policy_is_refused() -> None:
    frame = encode_frame(SetPolicy(revision=1, values=PolicyValues(decoder_kv_blocks_ttl=99)))
    with pytest.raises(ValueError):
        decoder().feed(frame.replace(b"decoder_kv_blocks_ttl\x63", b"decoder_kv_blocks_ttl\x05"))


def test_refused_stream_stays_refused() -> None:
    reader = decoder()
    with pytest.raises(ValueError):
        reader.feed(b"\x00\x00\x00\x01\xc1")
    with pytest.raises(ValueError):
        reader.feed(encode_frame(Ping(nonce=1)))
