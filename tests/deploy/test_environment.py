"""What the operator may set, and the sentence for what is wrong."""

from pathlib import Path

import pytest

from deploy.local.console import StackError
from deploy.local.environment import read_options

ROOT = Path("/srv/backhaul")


def test_defaults_are_the_documented_ports() -> None:
    options = read_options({}, ROOT)
    assert (options.controlplane_url, options.router_url) == ("http://127.0.0.1:8000", "http://127.0.0.1:8080")
    assert (options.ports.prefill, options.ports.decode) == (8100, 8200)
    assert (options.num_prefill, options.num_decode, options.has_prefill_prefix_cache) == (1, 1, False)
    assert options.layout.run == ROOT / ".run"


def test_offset_moves_every_port_that_is_not_named() -> None:
    options = read_options({"BACKHAUL_PORT_OFFSET": "1000", "BACKHAUL_ROUTER_PORT": "7000"}, ROOT)
    assert options.ports.controlplane == 9000
    assert options.ports.router == 7000
    assert options.ports.nixl == 6600


def test_relative_run_directory_lies_in_the_checkout() -> None:
    assert read_options({"BACKHAUL_RUN_DIR": ".run-two"}, ROOT).layout.run == ROOT / ".run-two"


def test_external_servers_replace_the_embedded_ones() -> None:
    options = read_options({"BACKHAUL_DATABASE_URL": "postgresql://u:p@db/x"}, ROOT)
    assert not options.has_own_postgres
    assert options.has_own_valkey


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("P", "0"),
        ("D", "9"),
        ("P", "two"),
        ("P_PREFIX_CACHE", "yes"),
        ("BACKHAUL_PORT_OFFSET", "-1"),
        ("BACKHAUL_ROUTER_PORT", "80"),
        ("BACKHAUL_DATABASE_URL", "mysql://db/x"),
        ("BACKHAUL_REDIS_URL", "db:6379"),
        ("BACKHAUL_TORCH_INDEX_URL", "pytorch.org"),
    ],
)
def test_wrong_value_is_refused_by_the_variables_name(name: str, value: str) -> None:
    with pytest.raises(StackError, match=f"^{name} must "):
        read_options({name: value}, ROOT)
