"""The last fleet snapshot on disk, so that a router starts while the control plane is away."""

import logging
import os
from pathlib import Path

import msgspec

from connector.protocol import FleetSnapshot

log = logging.getLogger(__name__)


def prepare_state_dir(path: Path) -> None:
    """The directory exists and is the owner's alone."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)


def save_snapshot(state_dir: Path, snapshot: FleetSnapshot) -> None:
    """Replaces the file atomically, mode 0600: it holds hashes of API keys and addresses, no secrets."""
    fresh = state_dir / "fleet.json.new"
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(snapshot))
    fresh.replace(state_dir / "fleet.json")


def load_snapshot(state_dir: Path) -> FleetSnapshot | None:
    """The snapshot saved last; absent if there is none or it can't be read, which is logged."""
    path = state_dir / "fleet.json"
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=FleetSnapshot)
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("event=saved_snapshot_unreadable path=%s error=%s", path, error)
        return None
