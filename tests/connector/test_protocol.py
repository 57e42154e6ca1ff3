"""The wire contract: every message survives its socket, unions are unambiguous, and bounds are enforced on arrival."""

from typing import Any, get_args

import msgspec
import pytest

from connector import protocol
from connector.protocol import (
    AgentToControl,
    AgentToEngine,
    ControlToAgent,
    ControlToRouter,
    Decision,
    EngineHello,
    EngineToAgent,
    Event,
    ExtendLease,
    FeedDelta,
    FeedToRouter,
    LeaseGranted,
    LegEnvelope,
    Message,
    Ping,
    PolicyPatch,
    PolicyValues,
    ReleaseLease,
    Role,
    RouterToControl,
    RouterToFeed,
    SetPolicy,
)

UNIONS: dict[str, Any] = {
    "EngineToAgent": EngineToAgent,
    "AgentToEngine": AgentToEngine,
    "AgentToControl": AgentToControl,
    "ControlToAgent": ControlToAgent,
    "RouterToControl": RouterToControl,
    "ControlToRouter": ControlToRouter,
    "FeedToRouter": FeedToRouter,
    "RouterToFeed": RouterToFeed,
    "Event": Event,
}
MESSAGES = sorted(
    (kind for kind in vars(protocol).values() if isinstance(kind, type) and issubclass(kind, Message)),
    key=lambda kind: kind.__name__,
)


def members(union: Any) -> tuple[type[Message], ...]:
    return get_args(union) or (union,)


def sample(kind: Any) -> Any:
    """A value of any type of the contract, made from its schema alone, with no field left at its default."""
    info = msgspec.inspect.type_info(kind)
    return msgspec.convert(_raw(info), kind)


def _raw(info: Any) -> Any:
    if isinstance(info, msgspec.inspect.StructType):
        fields = {field.encode_name: _raw(field.type) for field in info.fields}
        return fields if info.tag is None else {info.tag_field: info.tag, **fields}
    if isinstance(info, msgspec.inspect.UnionType):
        return _raw(next(one for one in info.types if not isinstance(one, msgspec.inspect.NoneType)))
    if isinstance(info, msgspec.inspect.EnumType):
        return next(iter(info.cls)).value
    if isinstance(info, msgspec.inspect.VarTupleType):
        return [_raw(info.item_type)]
    if isinstance(info, msgspec.inspect.DictType):
        return {"key": _raw(info.value_type)}
    return _RAW_LEAVES[type(info)]


_RAW_LEAVES: dict[type, Any] = {
    msgspec.inspect.StrType: "text",
    msgspec.inspect.IntType: 17,
    msgspec.inspect.FloatType: 0.75,
    msgspec.inspect.BoolType: True,
}


# ---------------------------------------------------------------- every message, on every socket


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_message_survives_json_and_msgpack(kind: type[Message]) -> None:
    message = sample(kind)
    assert msgspec.json.decode(msgspec.json.encode(message), type=kind) == message
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kind) == message


@pytest.mark.parametrize("union", UNIONS, ids=str)
def test_a_union_returns_each_member_as_itself(union: str) -> None:
    for kind in members(UNIONS[union]):
        message = sample(kind)
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=UNIONS[union])
        assert type(decoded) is kind
        assert decoded == message


def test_every_message_travels_on_some_socket() -> None:
    """Events ride in envelopes, so a message that is in no union and in no other message can't be sent."""
    listed = {kind for union in UNIONS.values() for kind in members(union)}
    carried = {kind for kind in MESSAGES if any(kind.__name__ in str(owner.__annotations__) for owner in MESSAGES)}
    assert [kind.__name__ for kind in MESSAGES if kind not in listed | carried and kind is not Message] == []


def test_a_message_of_another_socket_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="Invalid value 'Pong'"):
        msgspec.json.decode(b'{"type": "Pong", "nonce": 1, "load": {}}', type=AgentToEngine)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_an_unknown_field_of_the_next_version_is_ignored(kind: type[Message]) -> None:
    message = sample(kind)
    newer = {**msgspec.to_builtins(message), "field_of_version_2": [1, {"deep": True}]}
    assert msgspec.json.decode(msgspec.json.encode(newer), type=kind) == message


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_messages_can_not_be_changed_after_they_are_made(kind: type[Message]) -> None:
    message = sample(kind)
    for field in message.__struct_fields__:
        with pytest.raises(AttributeError, match="immutable type"):
            setattr(message, field, None)


# ---------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_recompute_threshold", -1),
        ("kv_recompute_threshold", 1.5),
        ("kv_recompute_threshold", None),
        ("decoder_kv_blocks_ttl", -1),
        ("decoder_kv_blocks_ttl", 1),
        ("decoder_kv_blocks_ttl", 9),
        ("kv_pull_deadline", 0),
        ("kv_pull_deadline", 3600.5),
        ("kv_lease_duration", 0),
        ("kv_lease_duration", 86401),
        ("pinned_kv_limit", -0.01),
        ("pinned_kv_limit", 1.01),
        ("trace_sampling", 2),
        ("decode_local_max_new_tokens", -1),
        ("release_on_read", "true"),
        ("bidirectional_kv_xfer", 1),
    ],
)
def test_a_policy_out_of_bounds_is_refused_as_values_and_as_patch(field: str, value: object) -> None:
    body = msgspec.json.encode({field: value})
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=PolicyValues)
    if value is not None:  # in a patch, null means that the wider scope holds
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(body, type=PolicyPatch)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_recompute_threshold", 0),
        ("decoder_kv_blocks_ttl", 0),
        ("decoder_kv_blocks_ttl", 10),
        ("kv_pull_deadline", 3600),
        ("kv_lease_duration", 1),
        ("pinned_kv_limit", 0),
        ("pinned_kv_limit", 1),
    ],
)
def test_a_policy_at_its_bounds_is_fine(field: str, value: object) -> None:
    body = msgspec.json.encode({field: value})
    assert getattr(msgspec.json.decode(body, type=PolicyValues), field) == value
    assert getattr(msgspec.json.decode(body, type=PolicyPatch), field) == value


def test_defaults_are_those_of_the_operators_contract() -> None:
    assert msgspec.to_builtins(PolicyValues()) == {
        "bidirectional_kv_xfer": True,
        "kv_recompute_threshold": 64,
        "decoder_kv_blocks_ttl": 480,
        "kv_pull_deadline": 5.0,
        "kv_lease_duration": 30,
        "pinned_kv_limit": 0.5,
        "release_on_read": False,
        "decode_local_max_new_tokens": 0,
        "trace_sampling": 1.0,
    }


@pytest.mark.parametrize("seconds", [-1, -0.001, "60"])
def test_an_extension_never_runs_backwards(seconds: object) -> None:
    body = msgspec.json.encode({"type": "ExtendLease", "command_id": "c", "lease_id": "l", "ttl_seconds": seconds})
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=ExtendLease)


@pytest.mark.parametrize("name", ["", "-p", "p 0", "p/0", "p" * 129, "é"])
def test_an_engine_may_not_call_itself_anything(name: str) -> None:
    hello = msgspec.to_builtins(sample(EngineHello))
    hello["engine"]["name"] = name
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(hello, EngineHello)


# ---------------------------------------------------------------- patches


def test_policy_and_patch_have_the_same_fields() -> None:
    assert PolicyPatch.__struct_fields__ == PolicyValues.__struct_fields__


@pytest.mark.parametrize("field", PolicyPatch.__struct_fields__)
def test_a_patch_changes_its_field_and_no_other(field: str) -> None:
    changed = {
        "bidirectional_kv_xfer": False,
        "kv_recompute_threshold": 0,
        "decoder_kv_blocks_ttl": 0,
        "kv_pull_deadline": 1.0,
        "kv_lease_duration": 60,
        "pinned_kv_limit": 0.0,
        "release_on_read": True,
        "decode_local_max_new_tokens": 5,
        "trace_sampling": 0.0,
    }
    patched = PolicyPatch(**{field: changed[field]}).apply_to(PolicyValues())  # type: ignore[arg-type]  # by name
    assert msgspec.to_builtins(patched) == {**msgspec.to_builtins(PolicyValues()), field: changed[field]}


def test_an_empty_patch_is_empty_on_the_wire_and_changes_nothing() -> None:
    assert msgspec.json.encode(PolicyPatch()) == b"{}"
    values = PolicyValues(kv_recompute_threshold=7)
    assert PolicyPatch().apply_to(values) == values


def test_narrower_patches_win() -> None:
    fleet, session = PolicyPatch(kv_recompute_threshold=1, trace_sampling=0.5), PolicyPatch(kv_recompute_threshold=2)
    assert session.apply_to(fleet.apply_to(PolicyValues())) == PolicyValues(
        kv_recompute_threshold=2, trace_sampling=0.5
    )


# ---------------------------------------------------------------- what must not leave


@pytest.mark.parametrize("kind", [LeaseGranted, *members(Event)], ids=lambda kind: kind.__name__)
def test_no_event_can_carry_tokens_digests_or_offers(kind: type[Message]) -> None:
    """Events end in Postgres and in spans."""
    for field in kind.__struct_fields__:
        assert not any(
            word in field for word in ("digest", "offer", "prompt_text", "token_ids", "chain", "messages")
        ) or (field == "num_offered_tokens")


def test_every_decision_but_the_local_ones_says_recomputed() -> None:
    """Operators and dashboards group by this prefix."""
    local = {Decision.PULLED, Decision.TRIMMED_PREFIX_DIVERGED, Decision.LOCAL_PREFIX_HIT, Decision.DECODE_LOCAL}
    assert {one for one in Decision if not one.value.startswith("recomputed_")} == local


def test_an_envelope_needs_its_leg_and_its_owner() -> None:
    whole = {"leg": "prefill", "tenant": "t", "session_id": "s", "turn_id": "u", "expires_unix": 1.0}
    assert msgspec.convert(whole, LegEnvelope).leg is Role.PREFILL
    for field in whole:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({key: value for key, value in whole.items() if key != field}, LegEnvelope)


def test_feed_deltas_carry_only_what_a_feed_serves() -> None:
    delta = sample(FeedDelta)
    assert delta.sequence == 17
    for foreign in (Ping(nonce=1), ReleaseLease(command_id="c", key="k"), SetPolicy(revision=1, values=PolicyValues())):
        body = {"type": "FeedDelta", "sequence": 1, "change": msgspec.to_builtins(foreign)}
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(body, FeedDelta)
