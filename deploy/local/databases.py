"""The stack's Postgres and Redis: embedded ones, unless the operator named servers of their own."""

from collections.abc import Iterator
from dataclasses import dataclass

from deploy.local import machine, postgres, valkey
from deploy.local.console import StackError
from deploy.local.environment import Options
from deploy.local.postgres import Postgres
from deploy.local.programs import Program
from deploy.local.valkey import Valkey

NUM_PORTS_TRIED = 50


@dataclass(frozen=True, kw_only=True)
class Databases:
    database_url: str
    redis_url: str
    router_redis_url: str
    postgres: Postgres | None
    valkey: Valkey | None

    def programs(self) -> Iterator[Program]:
        if self.postgres:
            yield self.postgres.program()
        if self.valkey:
            yield self.valkey.program()


def prepare(options: Options, running: frozenset[str]) -> Databases:
    """Makes cluster and configuration where missing. ``running``: programs that keep the port they have."""
    own_postgres = _postgres(options, "postgres" in running) if options.has_own_postgres else None
    own_valkey = _valkey(options, "valkey" in running) if options.has_own_valkey else None
    return Databases(
        database_url=own_postgres.url if own_postgres else options.database_url,
        redis_url=own_valkey.url if own_valkey else options.redis_url,
        router_redis_url=own_valkey.router_url if own_valkey else options.redis_url,
        postgres=own_postgres,
        valkey=own_valkey,
    )


def _postgres(options: Options, is_running: bool) -> Postgres:
    layout = options.layout
    binaries = postgres.find_binaries(layout.main_venv)
    server = Postgres(
        layout=layout,
        binaries=binaries,
        identity=postgres.choose_identity(layout, binaries),
        port=own_port(options, "postgres", options.ports.postgres, is_running=is_running),
    )
    server.initialise()
    return server


def _valkey(options: Options, is_running: bool) -> Valkey:
    server = Valkey(
        layout=options.layout,
        binary=valkey.find_binary(options.layout.main_venv),
        port=own_port(options, "valkey", options.ports.valkey, is_running=is_running),
    )
    server.configure()
    return server


def own_port(options: Options, name: str, preferred: int, *, is_running: bool) -> int:
    """Nobody needs to know this port, so a taken one is passed over; a running server keeps its own."""
    record = options.layout.state / f"{name}-port"
    if is_running and record.exists():
        return int(record.read_text())
    for port in range(preferred, preferred + NUM_PORTS_TRIED):
        if machine.is_port_free(port):
            record.write_text(str(port))
            return port
    raise StackError(f"no port from {preferred} up is free for {name}; set BACKHAUL_{name.upper()}_PORT.")
