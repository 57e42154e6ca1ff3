"""One long-running process of the stack, as supervisord will run it, and its section of supervisord's configuration."""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.local.console import StackError
from deploy.local.layout import Layout
from deploy.local.leftovers import SUPERVISED_BY

MAX_LOG_BYTES = 10 * 1024 * 1024
MAX_OPEN_FILES = 16384

STOP_WAVES = (("router",), ("agent-",), ("prefill-", "decode-", "celery-beat"), ("controlplane", "celery-"), ("",))


@dataclass(frozen=True, kw_only=True)
class Program:
    """``health`` says how ``readiness`` asks it; ``port`` is what it listens on, and ``port_variable`` changes that.

    An exit within ``start_seconds`` counts as a failed start, which supervisord repeats with growing pauses.
    """

    name: str
    command: tuple[str | Path, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    port_variable: str = ""
    health: str = "process"
    start_seconds: int = 3
    stop_signal: str = "TERM"
    stop_seconds: int = 20
    stops_group: bool = False


def stop_wave(name: str) -> int:
    """In which of its waves ``make down`` stops a program: what uses others goes before them."""
    return next(wave for wave, prefixes in enumerate(STOP_WAVES) if name.startswith(prefixes))


def supervisor_config(layout: Layout, programs: Iterable[Program], *, max_open_files: int) -> str:
    """Programs don't start with supervisord: the launcher starts them in order, and again when they gave up."""
    sections = [
        "[supervisord]",
        f"logfile={layout.log('supervisord')}",
        f"logfile_maxbytes={MAX_LOG_BYTES}",
        "logfile_backups=1",
        f"pidfile={layout.supervisor_pid}",
        f"directory={layout.root}",
        f"childlogdir={layout.logs}",
        f"minfds={min(MAX_OPEN_FILES, max_open_files)}",
        "umask=077",
        "[unix_http_server]",
        f"file={layout.supervisor_socket}",
        "chmod=0700",
        "[rpcinterface:supervisor]",
        "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
    ]
    for program in programs:
        sections += _section(layout, program)
    return "\n".join(sections) + "\n"


def _section(layout: Layout, program: Program) -> list[str]:
    command = [layout.main_python, "-m", "deploy.local.sole", *program.command]
    variables = {**program.environment, SUPERVISED_BY: str(layout.run)}
    return [
        f"[program:{program.name}]",
        f"command={_escaped(shlex.join(str(part) for part in command))}",
        f"environment={','.join(f'{name}={_quoted(value)}' for name, value in sorted(variables.items()))}",
        f"directory={layout.root}",
        "autostart=false",
        "autorestart=true",
        f"startsecs={program.start_seconds}",
        "startretries=10",
        f"stopsignal={program.stop_signal}",
        f"stopwaitsecs={program.stop_seconds}",
        f"stopasgroup={str(program.stops_group).lower()}",
        "killasgroup=true",
        "redirect_stderr=true",
        f"stdout_logfile={layout.log(program.name)}",
        f"stdout_logfile_maxbytes={MAX_LOG_BYTES}",
        "stdout_logfile_backups=2",
    ]


def _quoted(value: str) -> str:
    """supervisord knows both kinds of quotes but no escapes, begins a comment anywhere, and expands ``%(name)s``."""
    quote = "'" if '"' in value else '"'
    if quote in value or re.search(r"\n|\s[;#]", value):
        raise StackError(
            f"supervisord can't pass on {value[:20]!r}…: quotes of both kinds, a line break, or a comment."
        )
    return f"{quote}{_escaped(value)}{quote}"


def _escaped(value: str) -> str:
    return value.replace("%", "%%")
