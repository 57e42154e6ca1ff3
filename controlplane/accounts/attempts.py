"""Failed logins of the last minutes, counted in Redis, where all processes see them."""

import hashlib

from django.core.cache import cache

WINDOW_SECONDS = 300
MAX_PER_NAME = 10
MAX_PER_ADDRESS = 100


def seconds_to_wait(username: str, address: str) -> int:
    """0 when another attempt is allowed. Names are counted per address, so that nobody can lock another one out."""
    limits = {_name_key(username, address): MAX_PER_NAME, _address_key(address): MAX_PER_ADDRESS}
    counts = cache.get_many(list(limits))
    is_over = any(counts.get(key, 0) >= limit for key, limit in limits.items())
    return WINDOW_SECONDS if is_over else 0


def note_failure(username: str, address: str) -> None:
    for key in (_name_key(username, address), _address_key(address)):
        cache.add(key, 0, timeout=WINDOW_SECONDS)
        cache.incr(key)


def _name_key(username: str, address: str) -> str:
    digest = hashlib.sha256(f"{username.lower()}\0{address}".encode()).hexdigest()
    return f"login:name:{digest}"


def _address_key(address: str) -> str:
    return f"login:address:{address}"
