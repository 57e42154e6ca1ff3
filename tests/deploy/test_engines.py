"""The command and environment of each engine, and the options that our connector reads from them."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from connector.engine.options import parse_options
from deploy.local import credentials
from deploy.local.engines import Engine, engine_command, engine_program, engines_of, transfer_config
from deploy.local.environment import read_options
from deploy.local.layout import Layout


def test_counts_give_names_and_consecutive_ports() -> None:
    options = read_options({"P": "2", "D": "1"}, Path("/srv"))
    found = [
        (engine.name, engine.role, engine.port, engine.feed_port, engine.nixl_port) for engine in engines_of(options)
    ]
    assert found == [
        ("prefill-0", "prefill", 8100, 8110, 5600),
        ("prefill-1", "prefill", 8101, 8111, 5601),
        ("decode-0", "decode", 8200, 8210, 5650),
    ]


def test_no_two_parts_of_the_largest_fleet_share_a_port() -> None:
    engines = engines_of(read_options({"P": "8", "D": "8"}, Path("/srv")))
    ports = [port for engine in engines for port in (engine.port, engine.feed_port, engine.nixl_port)]
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize(
    ("cache", "role", "is_off"), [("0", "prefill", True), ("1", "prefill", False), ("0", "decode", False)]
)
def test_prefix_cache_is_off_for_prefill_unless_asked_for(cache: str, role: str, *, is_off: bool) -> None:
    options = read_options({"P_PREFIX_CACHE": cache}, Path("/srv"))
    engine = next(engine for engine in engines_of(options) if engine.role == role)
    assert ("--no-enable-prefix-caching" in list(engine_command(options, engine))) is is_off


@pytest.mark.parametrize(("role", "is_prefill"), [("prefill", True), ("decode", False)])
def test_connector_accepts_the_transfer_configuration(layout: Layout, role: str, *, is_prefill: bool) -> None:
    engine = Engine(name=f"{role}-0", role=role, port=8100, nixl_port=5600)
    config = json.loads(json.dumps(transfer_config(layout, engine)))
    extra = config["kv_connector_extra_config"]
    seen = SimpleNamespace(
        kv_role=config["kv_role"],
        kv_load_failure_policy=config["kv_load_failure_policy"],
        get_from_extra_config=extra.get,
    )
    options = parse_options(seen, is_cpu=True)
    assert options.is_prefill is is_prefill
    assert options.link_path == layout.link_path(engine.name)


def test_engine_key_goes_by_environment_only(layout: Layout) -> None:
    credentials.make_missing(layout.run)
    layout.model.mkdir()
    (layout.model / "stamp").write_text("digest\n")
    options = read_options({"BACKHAUL_RUN_DIR": str(layout.run)}, layout.root)
    program = engine_program(options, engines_of(options)[0])
    key = credentials.read(layout.run / "engine-key")
    assert program.environment["VLLM_API_KEY"] == key
    assert not [part for part in program.command if key in str(part)]


def test_transfers_stay_on_loopback(layout: Layout) -> None:
    credentials.make_missing(layout.run)
    layout.model.mkdir()
    (layout.model / "stamp").write_text("digest\n")
    options = read_options({"BACKHAUL_RUN_DIR": str(layout.run)}, layout.root)
    environment = engine_program(options, engines_of(options)[0]).environment
    assert environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"
    assert environment["UCX_NET_DEVICES"] == "lo"
