"""Facts about this machine, read from the kernel: what the processor can, memory, disk, and who holds a port."""

import errno
import platform
import shutil
import socket
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
GIB = 1024**3


def has_avx2(cpuinfo: Path = PROC / "cpuinfo") -> bool:
    """True on processors other than x86-64 too: there vLLM's CPU build needs nothing of the kind."""
    if platform.machine() not in ("x86_64", "amd64"):
        return True
    return any("avx2" in line.split() for line in cpuinfo.read_text().splitlines() if line.startswith("flags"))


def free_memory_bytes(meminfo: Path = PROC / "meminfo", cgroup: Path = CGROUP) -> int:
    """What the kernel calls available, or what the control group still allows when that is less."""
    available = next(
        int(line.split()[1]) * 1024 for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:")
    )
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):
        return available
    return available if limit == "max" else min(available, int(limit) - used)


def free_disk_bytes(folder: Path) -> int:
    """Of the file system that ``folder`` lies on, or will lie on."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def is_port_free(port: int) -> bool:
    """True when a server could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def port_holder(port: int) -> str:
    """``<program> (pid <n>)`` of the process that listens on the port, as far as this user may see it."""
    inodes = {inode for table in ("tcp", "tcp6") for inode in _listening_inodes(PROC / "net" / table, port)}
    for process in PROC.iterdir():
        if process.name.isdigit() and inodes & _socket_inodes(process):
            return f"{_program_name(process)} (pid {process.name})"
    return "another process"


def _listening_inodes(table: Path, port: int) -> set[str]:
    """Rows of state 0A (listen) whose local port, in hexadecimal, is this one."""
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return set()
    return {row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}


def _socket_inodes(process: Path) -> set[str]:
    found = set()
    try:
        for descriptor in (process / "fd").iterdir():
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:  # the process ended, or belongs to another user
        return found
    return found


def _program_name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "a process"
