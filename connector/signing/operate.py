"""What an operator does to a fleet key file: add a key, make it sign, take an old one away.

Each change writes a new file beside the old one, mode 0600 and fsynced, and renames it over: a process that reads it
meanwhile sees the old file or the new one, whole.
"""

import os
import secrets
import tempfile
from pathlib import Path

from connector.signing.keys import MAX_KEYS, MIN_SECRET_BYTES, FleetKey, parse_keys


def key_ids(path: Path) -> tuple[str, ...]:
    """In the file's order: the first signs. Raises as ``FleetKey.load`` does."""
    return FleetKey.load(path).key_ids


def rotate(path: Path) -> str:
    """Puts a new key first: it signs from now on, and the older ones still verify. Its id."""
    keys = _load(path)
    key_id = _new_id(keys)
    _store(path, {key_id: _new_secret(), **keys})
    return key_id


def stage(path: Path) -> str:
    """Puts a new key last: it only verifies, until ``promote`` once every host has the file. Its id."""
    keys = _load(path)
    key_id = _new_id(keys)
    _store(path, {**keys, key_id: _new_secret()})
    return key_id


def promote(path: Path, key_id: str) -> None:
    """Puts a key of the file first. Raises ``ValueError`` when it is not there."""
    keys = _load(path)
    secret = _taken(path, keys, key_id)
    _store(path, {key_id: secret, **keys})


def remove(path: Path, key_id: str) -> None:
    """Takes a key out; offers and sessions made with it are recomputed from now on. Never the one that signs."""
    keys = _load(path)
    if next(iter(keys)) == key_id:
        raise ValueError(f"{key_id} is the key that signs; rotate or promote another one first")
    _taken(path, keys, key_id)
    _store(path, keys)


def _load(path: Path) -> dict[str, bytes]:
    FleetKey.load(path)  # refuses a file that engines would refuse
    return parse_keys(path.read_bytes(), where=str(path))


def _taken(path: Path, keys: dict[str, bytes], key_id: str) -> bytes:
    if key_id not in keys:
        raise ValueError(f"{path} holds no key {key_id}; it holds {', '.join(keys)}")
    return keys.pop(key_id)


def _new_id(keys: dict[str, bytes]) -> str:
    if len(keys) >= MAX_KEYS:
        raise ValueError(f"the file holds {MAX_KEYS} keys already; remove those that no lease needs any more")
    while (key_id := f"k{secrets.token_hex(4)}") in keys:
        pass
    return key_id


def _new_secret() -> bytes:
    return secrets.token_bytes(MIN_SECRET_BYTES)


def _store(path: Path, keys: dict[str, bytes]) -> None:
    target = path.resolve()  # a link stays a link
    content = "".join(f"{key_id} {secret.hex()}\n" for key_id, secret in keys.items())
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # mode 0600
    aside = Path(name)
    try:
        with os.fdopen(descriptor, "w") as file:
            owner = target.stat()
            if os.geteuid() == 0:
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
