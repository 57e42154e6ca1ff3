"""One sentence for each thing that can't work, from the facts of a machine that lacks it."""

import socket
from pathlib import Path

import pytest

from deploy.local import machine, preflight
from deploy.local.console import StackError
from deploy.local.layout import Layout


def test_python_without_venv_names_the_package_to_install() -> None:
    with pytest.raises(StackError, match=r"apt-get install python3\.11-venv$"):
        preflight.check_python((3, 11), has_ensurepip=False)


def test_python_that_vllm_does_not_know_is_refused() -> None:
    preflight.check_python((3, 14), has_ensurepip=True)
    with pytest.raises(StackError, match="newer than vLLM"):
        preflight.check_python((3, 15), has_ensurepip=True)


@pytest.mark.parametrize("libc", [("", ""), ("musl", "1.2"), ("glibc", "2.27")])
def test_c_library_that_the_wheels_cannot_use_is_refused(libc: tuple[str, str]) -> None:
    preflight.check_platform("linux", ("glibc", "2.36"))
    with pytest.raises(StackError, match=r"glibc 2\.28"):
        preflight.check_platform("linux", libc)


def test_processor_flags_decide_on_avx2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: old\nflags\t\t: fpu sse avx\n")
    assert not machine.has_avx2(cpuinfo)
    cpuinfo.write_text("model name\t: new\nflags\t\t: fpu sse avx avx2\n")
    assert machine.has_avx2(cpuinfo)


def test_control_group_limit_counts_when_it_is_lower_than_what_is_free(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable:    8388608 kB\n")
    assert machine.free_memory_bytes(meminfo, tmp_path) == 8 * machine.GIB
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1073741824\n")
    assert machine.free_memory_bytes(meminfo, tmp_path) == 8 * machine.GIB
    (tmp_path / "memory.max").write_text(f"{3 * machine.GIB}\n")
    assert machine.free_memory_bytes(meminfo, tmp_path) == 2 * machine.GIB


def test_too_little_memory_says_how_much_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: 2 * machine.GIB)
    preflight.check_memory(0, starts_the_rest=True)
    with pytest.raises(StackError, match=r"^2\.0 GiB of memory are free; 2 engines and the rest need"):
        preflight.check_memory(2, starts_the_rest=True)


def test_disk_is_measured_where_the_environments_will_lie(tmp_path: Path) -> None:
    assert machine.free_disk_bytes(tmp_path / "not" / "yet") > 0
    layout = Layout(root=tmp_path, run=tmp_path / "run")
    assert preflight.required_disk_gib(layout) == preflight.GIB_OF_DISK_TO_INSTALL
    layout.engine_python.parent.mkdir(parents=True)
    layout.engine_python.touch()
    assert preflight.required_disk_gib(layout) == preflight.GIB_OF_DISK_TO_RUN


def test_taken_port_names_its_holder_and_the_variable() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(
            StackError, match=rf"^port {port}, wanted for the router, is taken by .+ \(pid \d+\); end that"
        ):
            preflight.check_ports([("the router", port, "BACKHAUL_ROUTER_PORT")])
    preflight.check_ports([("the router", port, "BACKHAUL_ROUTER_PORT")])


def test_missing_library_names_the_package_to_install() -> None:
    preflight.check_libraries({"libc.so.6": "libc6"})
    with pytest.raises(StackError, match=r"libnone\.so\.9 is missing; run: apt-get install libnone9$"):
        preflight.check_libraries({"libnone.so.9": "libnone9"})


def test_missing_program_of_the_base_system_is_named(tmp_path: Path) -> None:
    (tmp_path / "tail").touch()
    with pytest.raises(StackError, match="the program unshare is missing"):
        preflight.check_tools(["tail", "unshare"], str(tmp_path))
