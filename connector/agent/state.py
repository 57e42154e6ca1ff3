"""The agent's directory on disk: one owner at a time, and the last policy and peers, replaced atomically."""

import fcntl
import logging
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from connector.agent.environment import ConfigurationError
from connector.protocol import Message, SetPeers, SetPolicy

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)


class StateDirectory:
    """Made 0700, files 0600. Raises ``ConfigurationError`` when it can't be used or another agent owns it.

    The lock goes with the process, so a killed agent leaves nothing to clean up.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spool_path = path / "spool"
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.spool_path.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigurationError(f"--state-dir: {path} can't be used: {error.strerror}.") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise ConfigurationError(f"--state-dir: {path} is in use by another agent.") from error

    def close(self) -> None:
        os.close(self._lock)

    def load_policy(self) -> SetPolicy | None:
        """The last stored policy; ``None`` when there is none or it can't be read, which is logged."""
        return self._load("policy", SetPolicy)

    def store_policy(self, policy: SetPolicy) -> None:
        """Durable when it returns: written aside, fsynced, renamed over. Raises ``OSError``."""
        self._store("policy", policy)

    def load_peers(self) -> SetPeers | None:
        """The last stored list; ``None`` when there is none or it can't be read, which is logged."""
        return self._load("peers", SetPeers)

    def store_peers(self, peers: SetPeers) -> None:
        """As ``store_policy``."""
        self._store("peers", peers)

    def _load(self, name: str, kind: type[M]) -> M | None:
        path = self.path / f"{name}.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            logger.error("%s_unreadable path=%s error=%s", name, path, error)
            return None

    def _store(self, name: str, message: Message) -> None:
        target, aside = self.path / f"{name}.json", self.path / f"{name}.json.new"
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(msgspec.json.encode(message) + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        aside.replace(target)
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
