"""What a client may cost the server: sizes in bytes, durations in seconds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """``head_seconds`` and ``body_seconds`` bound how long a client may take to send either.

    ``linger_seconds``: how long what a client still sends after a final answer is read and thrown away, so that the
    answer isn't lost to a reset. ``flush_seconds``: how long a closing connection may take to read its last answer.
    """

    max_body_bytes: int
    max_head_bytes: int = 16 * 1024
    max_fields: int = 100
    max_waiting: int = 32
    idle_seconds: float = 75.0
    head_seconds: float = 15.0
    body_seconds: float = 120.0
    linger_seconds: float = 2.0
    flush_seconds: float = 30.0
