"""The built frontend as it lies on disk: read once per change, compressed once. Pure apart from reading files."""

import gzip
import html
import mimetypes
import re
from functools import lru_cache
from pathlib import Path

import msgspec

ASSET_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class Asset(msgspec.Struct, frozen=True):
    content_type: str
    body: bytes
    compressed: bytes


def find_asset(folder: Path, name: str) -> Asset | None:
    """A file directly in ``folder``; never one outside it, never a hidden one."""
    if not ASSET_NAME.fullmatch(name):
        return None
    path = folder / name
    try:
        modified = path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
    return _read_asset(path, modified) if path.is_file() else None


@lru_cache(maxsize=64)
def _read_asset(path: Path, modified_ns: int) -> Asset:
    content_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    body = path.read_bytes()
    return Asset(content_type, body, gzip.compress(body, 6))


def render_page(index: bytes, *, user: str, csrf_token: str) -> str:
    """``index.html`` with the two meta tags filled that the page reads at start."""
    page = index.decode()
    for name, value in (("backhaul-user", user), ("backhaul-csrf-token", csrf_token)):
        empty = f'<meta name="{name}" content="" />'
        page = page.replace(empty, f'<meta name="{name}" content="{html.escape(value, quote=True)}" />')
    return page
