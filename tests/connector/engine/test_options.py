"""Start-up options: each refusal is one sentence that says what to set."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from connector.engine.options import EngineOptions, parse_options
from connector.protocol import PolicyValues

GOOD: dict[str, Any] = {
    "backhaul_engine_name": "d-0",
    "backhaul_link_path": "/run/backhaul/d-0.sock",
    "backhaul_fleet_key_file": "/run/backhaul/fleet.key",
    "bidirectional_kv_xfer": True,
}


def whole(sentence: str) -> str:
    """A pattern that only this sentence matches."""
    return f"^{re.escape(sentence)}$"


class FakeTransferConfig:
    def __init__(
        self, extra: dict[str, Any], role: str | None = "kv_consumer", failure_policy: str = "recompute"
    ) -> None:
        self.extra = extra
        self.kv_role = role
        self.kv_load_failure_policy = failure_policy

    def get_from_extra_config(self, key: str, default: Any) -> Any:
        return self.extra.get(key, default)


def parse(extra: dict[str, Any] | None = None, *, is_cpu: bool = False, **config: Any) -> EngineOptions:
    """The good options with these on top; a ``None`` takes one away."""
    given = {key: value for key, value in {**GOOD, **(extra or {})}.items() if value is not None}
    return parse_options(FakeTransferConfig(given, **config), is_cpu=is_cpu)


def test_a_full_configuration_is_read() -> None:
    options = parse()
    assert options.engine_name == "d-0"
    assert options.link_path == Path("/run/backhaul/d-0.sock")
    assert options.fleet_key_file == Path("/run/backhaul/fleet.key")
    assert options.policy == PolicyValues()


@pytest.mark.parametrize(("role", "is_prefill"), [("kv_producer", True), ("kv_consumer", False)])
def test_the_role_says_which_side_this_engine_is(role: str, is_prefill: bool) -> None:
    assert parse(role=role).is_prefill is is_prefill


@pytest.mark.parametrize("key", ["backhaul_engine_name", "backhaul_link_path", "backhaul_fleet_key_file"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_option_is_named(key: str, value: str | None) -> None:
    with pytest.raises(ValueError, match=whole(f"kv_connector_extra_config lacks {key}")):
        parse({key: value})


@pytest.mark.parametrize("name", ["-d", ".d", "d 0", "d/0", "ü", "d" * 129, "d\n", "d-0\n", "../d", "d;rm", "d\0"])
def test_a_name_that_does_not_fit_a_path_or_a_url_is_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match=whole("backhaul_engine_name may hold letters, digits, dot, dash and underscore only")
    ):
        parse({"backhaul_engine_name": name})


@pytest.mark.parametrize("name", ["d", "D-0.us_west", "0", "d" * 128])
def test_other_names_are_fine(name: str) -> None:
    assert parse({"backhaul_engine_name": name}).engine_name == name


def test_a_socket_path_beyond_the_systems_limit_is_refused() -> None:
    path = "/" + "a" * 106
    assert parse({"backhaul_link_path": path}).link_path == Path(path)
    with pytest.raises(ValueError, match="backhaul_link_path is longer than 107 bytes: /aaa"):
        parse({"backhaul_link_path": "/" + "a" * 107})


def test_the_limit_of_a_socket_path_counts_bytes() -> None:
    with pytest.raises(ValueError, match="longer than 107 bytes"):
        parse({"backhaul_link_path": "/" + "ü" * 54})


@pytest.mark.parametrize("role", ["kv_both", None, "", "kv_other"])
def test_an_engine_of_both_roles_is_refused(role: str | None) -> None:
    with pytest.raises(ValueError, match=whole("kv_role must be kv_producer (prefill) or kv_consumer (decode)")):
        parse(role=role)


@pytest.mark.parametrize("policy", ["fail", ""])
def test_a_failed_load_must_recompute(policy: str) -> None:
    sentence = "kv_load_failure_policy must be recompute: a declined pull is never an error to the user"
    with pytest.raises(ValueError, match=whole(sentence)):
        parse(failure_policy=policy)


@pytest.mark.parametrize("value", [None, False])
def test_reuse_is_on_at_start_and_only_policy_turns_it_off(value: bool | None) -> None:
    with pytest.raises(
        ValueError, match=whole("bidirectional_kv_xfer must be true at start; turn reuse off by policy instead")
    ):
        parse({"bidirectional_kv_xfer": value})


def test_the_engines_own_constants_are_its_first_policy() -> None:
    given = PolicyValues(
        kv_recompute_threshold=128, decoder_kv_blocks_ttl=60, kv_pull_deadline=2.5, pinned_kv_limit=0.25
    )
    assert parse(msgspec.structs.asdict(given)).policy == given


def test_a_zero_is_a_value() -> None:
    options = parse({"kv_recompute_threshold": 0, "decoder_kv_blocks_ttl": 0, "pinned_kv_limit": 0})
    assert options.policy == PolicyValues(kv_recompute_threshold=0, decoder_kv_blocks_ttl=0, pinned_kv_limit=0.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_recompute_threshold", -1),
        ("kv_recompute_threshold", "64"),
        ("decoder_kv_blocks_ttl", 9),
        ("kv_pull_deadline", 0),
        ("kv_pull_deadline", 3601),
        ("kv_lease_duration", 0),
        ("pinned_kv_limit", 1.01),
        ("release_on_read", "yes"),
    ],
)
def test_a_constant_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(msgspec.ValidationError, match=field):
        parse({field: value})


PACES = {"backhaul_idle_poll_ms": 2, "backhaul_idle_wait_ms": 3, "backhaul_cpu_yield_ms": 0}


@pytest.mark.parametrize("is_cpu", [True, False])
def test_only_cpu_engines_pace_their_loops_unless_told(is_cpu: bool) -> None:
    options = parse(is_cpu=is_cpu)
    assert {options.idle_poll_ms > 0, options.idle_wait_ms > 0, options.cpu_yield_ms > 0} == {is_cpu}
    options = parse(PACES, is_cpu=is_cpu)
    assert (options.idle_poll_ms, options.idle_wait_ms, options.cpu_yield_ms) == (2.0, 3.0, 0.0)


NUMBERS = [
    ("backhaul_idle_poll_ms", 1000),
    ("backhaul_idle_wait_ms", 1000),
    ("backhaul_cpu_yield_ms", 1000),
    ("backhaul_policy_wait_seconds", 300),
]


@pytest.mark.parametrize(("key", "highest"), NUMBERS)
@pytest.mark.parametrize("value", ["5", "5ms", True, [], -1, -0.001, float("nan"), float("inf"), 10**6])
def test_what_is_no_number_within_bounds_is_refused_by_name(key: str, highest: int, value: object) -> None:
    with pytest.raises(ValueError, match=whole(f"{key} must be a number from 0 to {highest}, not {value!r}")):
        parse({key: value})


@pytest.mark.parametrize(("key", "highest"), NUMBERS)
def test_both_bounds_are_allowed(key: str, highest: int) -> None:
    field = key.removeprefix("backhaul_")
    assert getattr(parse({key: 0}), field) == 0.0
    assert getattr(parse({key: highest}), field) == highest


def test_an_engine_waits_five_seconds_for_its_policy_unless_told() -> None:
    assert parse().policy_wait_seconds == 5.0
