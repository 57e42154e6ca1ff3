"""``make up``: makes what is missing, starts the parts in order, and returns when every one of them works."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from deploy.local import credentials, databases, frontend, migrations, model, preflight, virtualenvs
from deploy.local.console import Console
from deploy.local.databases import Databases
from deploy.local.engines import SERVED_MODEL, engine_program, engines_of
from deploy.local.environment import Options
from deploy.local.exclusive import only_launcher
from deploy.local.leftovers import end_leftovers
from deploy.local.parts import StackRecord, parts_of, probe_of, write_record
from deploy.local.programs import Program
from deploy.local.readiness import Probe, engines_ready_probe, wait_until_ready
from deploy.local.services import controlplane_programs, controlplane_variables, front_programs
from deploy.local.supervisor import RUNNING_STATES, Supervisor

START_SECONDS = 60.0
READY_SECONDS = 300.0


def prepare(options: Options, console: Console) -> None:
    """Everything that ``up`` needs but doesn't start; the two environments are made side by side."""
    console.say(f"checks: {preflight.check_machine(options)}")
    options.layout.create()
    virtualenvs.prepare_torch(options, console)
    with ThreadPoolExecutor(max_workers=1) as pool:
        engine_side = pool.submit(_prepare_engine_side, options, console)
        virtualenvs.prepare_main(options, console)
        frontend.prepare(options, console)
        engine_side.result()


def _prepare_engine_side(options: Options, console: Console) -> None:
    virtualenvs.prepare_engine(options, console)
    model.prepare(options, console)


def up(options: Options, console: Console) -> None:
    """Safe to repeat: what runs and is unchanged is left alone."""
    options.layout.create()
    with only_launcher(options.layout):
        supervisor = Supervisor(options.layout)
        running = _running_before(supervisor, options, console)
        _check_room(options, running)
        prepare(options, console)
        if made := credentials.make_missing(options.layout.run):
            console.say(f"secrets: made {', '.join(made)}")
        Launch(options, console, supervisor, databases.prepare(options, running)).run()
    _say_where(options, console)


def _running_before(supervisor: Supervisor, options: Options, console: Console) -> frozenset[str]:
    if supervisor.is_alive():
        return _running(supervisor)
    if num_ended := end_leftovers(options.layout):
        console.say(f"ended {num_ended} processes that had outlived their parent")
    return frozenset()


def _running(supervisor: Supervisor) -> frozenset[str]:
    return frozenset(name for name, state in supervisor.states().items() if state.state in RUNNING_STATES)


def _check_room(options: Options, running: frozenset[str]) -> None:
    """Ports and memory of what is yet to be started."""
    engines = [engine for engine in engines_of(options) if engine.name not in running]
    wanted = []
    for engine in engines:
        variable = f"BACKHAUL_{engine.role.upper()}_PORT"
        wanted.append((engine.name, engine.port, variable))
        wanted.append((f"NIXL of {engine.name}", engine.nixl_port, "BACKHAUL_NIXL_PORT"))
        if f"agent-{engine.name}" not in running:
            wanted.append((f"the feed of {engine.name}", engine.feed_port, variable))
    if "controlplane" not in running:
        wanted.append(("the control plane", options.ports.controlplane, "BACKHAUL_CONTROLPLANE_PORT"))
    if "router" not in running:
        wanted.append(("the router", options.ports.router, "BACKHAUL_ROUTER_PORT"))
    preflight.check_ports(wanted)
    preflight.check_memory(len(engines), starts_the_rest="controlplane" not in running)


class Launch:
    """The programs of one stack, started in order: stores and engines, then the control plane, then what joins it."""

    def __init__(self, options: Options, console: Console, supervisor: Supervisor, stores: Databases) -> None:
        self._options = options
        self._console = console
        self._supervisor = supervisor
        self._stores = stores
        self._variables = controlplane_variables(options, stores.database_url, stores.redis_url)
        self._servers = [*stores.programs(), *(engine_program(options, engine) for engine in engines_of(options))]
        self._control = controlplane_programs(options, self._variables)
        self._front = front_programs(options, stores.router_redis_url)
        self._probes = self._make_probes()

    def run(self) -> None:
        changed = self._supervisor.apply([*self._servers, *self._control, *self._front])
        if changed:
            self._console.say(f"changed since the last start: {', '.join(changed)}")
        write_record(self._options.layout, self._record())
        self._start(self._servers)
        self._wait([program.name for program in self._stores.programs()], START_SECONDS)
        if self._stores.postgres:
            self._stores.postgres.create_database()
        is_serving = "controlplane" in _running(self._supervisor)
        migrations.migrate(self._options, self._variables, self._console, is_serving=is_serving)
        self._start(self._control)
        self._wait(["controlplane"], START_SECONDS)
        self._start(self._front)
        self._wait([*self._probes], READY_SECONDS)
        self._wait_for({"fleet": self._fleet_probe()}, START_SECONDS)

    def _start(self, programs: Iterable[Program]) -> None:
        started = [program.name for program in programs if self._supervisor.start(program.name)]
        if started:
            self._console.say(f"started {', '.join(started)}")

    def _wait(self, names: Sequence[str], seconds: float) -> None:
        self._wait_for({name: self._probes.pop(name) for name in names}, seconds)

    def _wait_for(self, probes: Mapping[str, Probe], seconds: float) -> None:
        wait_until_ready(probes, self._supervisor, self._options.layout, self._console, seconds=seconds)

    def _make_probes(self) -> dict[str, Probe]:
        record = self._record()
        return {part.name: probe_of(part, self._options.layout, record.celery_variables) for part in record.parts}

    def _fleet_probe(self) -> Probe:
        """The control plane sees every engine as ready: agents and engine links work too."""
        token = credentials.read(self._options.layout.run / "admin-token")
        return engines_ready_probe(
            self._options.controlplane_url, token, [engine.name for engine in engines_of(self._options)]
        )

    def _record(self) -> StackRecord:
        options = self._options
        return StackRecord(
            controlplane_url=options.controlplane_url,
            router_url=options.router_url,
            model=SERVED_MODEL,
            engines=tuple(
                {"name": engine.name, "role": engine.role, "url": engine.url, "feed_url": engine.feed_url}
                for engine in engines_of(options)
            ),
            parts=parts_of([*self._servers, *self._control, *self._front]),
            celery_variables=self._variables,
        )


def _say_where(options: Options, console: Console) -> None:
    run = options.layout.run
    engines = ", ".join(f"{engine.name} :{engine.port}" for engine in engines_of(options))
    console.say("Backhaul is up")
    for name, place, secret in (
        ("page", f"{options.controlplane_url}/", f"login {run / 'admin-login'}"),
        ("REST", f"{options.controlplane_url}/api/v1/", f"token {run / 'admin-token'}"),
        ("router", f"{options.router_url}/v1", f"key   {run / 'api-key'}   model {SERVED_MODEL}"),
        ("engines", engines, f"key   {run / 'engine-key'}"),
    ):
        console.plain(f"  {name:8} {place:34} {secret}")
    console.plain("  next     make demo, make status, make logs S=router, make down")
