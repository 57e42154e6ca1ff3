"""Says in one line what can't work on this machine, before anything is installed or started."""

import ctypes
import importlib.util
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from deploy.local import machine
from deploy.local.console import StackError
from deploy.local.environment import Options
from deploy.local.layout import Layout

MAX_PYTHON = (3, 14)
MIN_GLIBC = (2, 28)
GIB_PER_ENGINE = 2.75
GIB_FOR_THE_REST = 1.0
GIB_OF_DISK_TO_INSTALL = 8.0
GIB_OF_DISK_TO_RUN = 1.0
BASE_TOOLS = ("tail", "unshare", "setpriv")
BASE_LIBRARIES = {"libnuma.so.1": "libnuma1", "libstdc++.so.6": "libstdc++6"}
"""Of vLLM's and torch's wheels."""


def check_machine(options: Options) -> str:
    """One line with what was found. Raises ``StackError``."""
    check_python(sys.version_info[:2], has_ensurepip=importlib.util.find_spec("ensurepip") is not None)
    check_platform(sys.platform, platform.libc_ver())
    check_tools(BASE_TOOLS, os.environ.get("PATH", ""))
    check_libraries(BASE_LIBRARIES)
    if not machine.has_avx2():
        raise StackError("this processor has no AVX2, which vLLM's CPU build needs; run the stack on a newer one.")
    disk = machine.free_disk_bytes(options.layout.root) / machine.GIB
    needed = required_disk_gib(options.layout)
    if disk < needed:
        raise StackError(f"{disk:.1f} GiB of disk are free at {options.layout.root}; {needed:.1f} GiB are needed.")
    return f"Python {platform.python_version()}, {platform.machine()}, {disk:.0f} GiB of disk free"


def check_python(version: tuple[int, ...], *, has_ensurepip: bool) -> None:
    found = ".".join(map(str, version))
    if version > MAX_PYTHON:
        newest = ".".join(map(str, MAX_PYTHON))
        raise StackError(f"Python {found} is newer than vLLM's CPU build supports; set PYTHON=python{newest} or older.")
    if not has_ensurepip:
        raise StackError(f"Python {found} can't make virtual environments; run: apt-get install python{found}-venv")


def check_platform(system: str, libc: tuple[str, str]) -> None:
    if system != "linux":
        raise StackError(f"this stack runs on Linux; {system} has no vLLM CPU build with NIXL.")
    name, version = libc
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if name != "glibc" or numbers < MIN_GLIBC:
        raise StackError(
            f"the wheels need glibc {MIN_GLIBC[0]}.{MIN_GLIBC[1]} or newer; here is {name or 'another libc'} {version}."
        )


def required_disk_gib(layout: Layout) -> float:
    """Both environments and pip's cache when nothing is installed yet, else room for logs and the database."""
    return GIB_OF_DISK_TO_RUN if layout.engine_python.exists() else GIB_OF_DISK_TO_INSTALL


def check_memory(num_engines_to_start: int, *, starts_the_rest: bool) -> None:
    """Only what is yet to be started counts, so that a repeated ``make up`` passes on a full machine."""
    needed = num_engines_to_start * GIB_PER_ENGINE + (GIB_FOR_THE_REST if starts_the_rest else 0)
    free = machine.free_memory_bytes() / machine.GIB
    if free < needed:
        raise StackError(
            f"{free:.1f} GiB of memory are free; {num_engines_to_start} engines and the rest need {needed:.1f} GiB "
            f"({GIB_PER_ENGINE} GiB per engine)."
        )


def check_ports(wanted: Iterable[tuple[str, int, str]]) -> None:
    """``wanted``: what it is for, the port, the variable that changes it; only of parts that aren't running yet."""
    for purpose, port, variable in wanted:
        if not machine.is_port_free(port):
            holder = machine.port_holder(port)
            raise StackError(f"port {port}, wanted for {purpose}, is taken by {holder}; end that or set {variable}.")


def check_tools(names: Iterable[str], path: str) -> None:
    """Programs of the base system that the stack calls."""
    for name in names:
        if not any((Path(folder) / name).is_file() for folder in path.split(":") if folder):
            raise StackError(f"the program {name} is missing; install the package that brings it.")


def check_libraries(names: Mapping[str, str]) -> None:
    """``names``: shared library, and the package that brings it; what the wheels take from the base system."""
    for library, package in names.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            raise StackError(f"the library {library} is missing; run: apt-get install {package}") from None
