"""A step is skipped when what it was made from is unchanged: a digest of its inputs, kept beside its product."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

IGNORED_FOLDERS = frozenset({"__pycache__", "node_modules", "dist", "tests"})


def digest_of(paths: Iterable[Path], *extra: str) -> str:
    """SHA-256 over names and contents of files (folders recursively, in order) and further strings."""
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(_files(path)):
            digest.update(f"{file.relative_to(path.parent)}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    for text in extra:
        digest.update(f"\0{text}".encode())
    return digest.hexdigest()


def is_current(stamp: Path, digest: str) -> bool:
    try:
        return stamp.read_text().strip() == digest
    except FileNotFoundError:
        return False


def write_stamp(stamp: Path, digest: str) -> None:
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(f"{digest}\n")


def _files(path: Path) -> Iterable[Path]:
    if path.is_file():
        yield path
    elif path.is_dir() and path.name not in IGNORED_FOLDERS:
        for child in path.iterdir():
            yield from _files(child)
