"""What ``make up`` started, kept in ``<run>/stack.json`` so that status, logs and tests know it without the options."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from deploy.local.console import StackError
from deploy.local.credentials import read
from deploy.local.layout import Layout
from deploy.local.postgres import find_binaries, is_accepting
from deploy.local.programs import Program
from deploy.local.readiness import Probe, celery_probe, http_probe
from deploy.local.valkey import is_answering


@dataclass(frozen=True, kw_only=True)
class Part:
    """``health`` is ``process``, ``celery``, ``postgres``, ``valkey``, ``http <path>`` (200) or ``answers <path>``."""

    name: str
    port: int | None
    health: str


@dataclass(frozen=True, kw_only=True)
class StackRecord:
    controlplane_url: str
    router_url: str
    model: str
    engines: tuple[dict[str, str], ...]
    parts: tuple[Part, ...]
    celery_variables: Mapping[str, str]


def parts_of(programs: Iterable[Program]) -> tuple[Part, ...]:
    return tuple(Part(name=program.name, port=program.port, health=program.health) for program in programs)


def write_record(layout: Layout, record: StackRecord) -> None:
    """Private like the run directory: the variables name the database with its password."""
    path = layout.run / "stack.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(asdict(record), indent=2) + "\n")


def read_record(layout: Layout) -> StackRecord:
    try:
        fields = json.loads((layout.run / "stack.json").read_text())
    except FileNotFoundError:
        raise StackError(f"no stack was started in {layout.run}; run make up.") from None
    fields["parts"] = tuple(Part(**part) for part in fields["parts"])
    fields["engines"] = tuple(fields["engines"])
    return StackRecord(**fields)


def probe_of(part: Part, layout: Layout, celery_variables: Mapping[str, str]) -> Probe:
    kind, _, path = part.health.partition(" ")
    port = part.port or 0
    url = f"http://127.0.0.1:{port}{path}"
    probes: dict[str, Callable[[], Probe]] = {
        "http": lambda: http_probe(url),
        "answers": lambda: http_probe(url, accepts_any_status=True),
        "postgres": lambda: _postgres_probe(layout, port),
        "valkey": lambda: _valkey_probe(layout, port),
        "celery": lambda: celery_probe(layout, celery_variables),
        "process": lambda: lambda: "",
    }
    return probes[kind]()


def _postgres_probe(layout: Layout, port: int) -> Probe:
    binaries = find_binaries(layout.main_venv)
    return lambda: "" if is_accepting(binaries, port) else "accepts no sessions"


def _valkey_probe(layout: Layout, port: int) -> Probe:
    password = read(layout.run / "valkey-password")
    return lambda: "" if is_answering(port, password) else "no answer to a ping"
