"""Turns reuse off and on through REST, and waits for the proof that every enforcer follows."""

import time
from collections.abc import Callable

from deploy.demo.record import DemoError, Recorder

WAIT_SECONDS = 10.0


def is_reuse_on(recorder: Recorder) -> bool:
    return bool(recorder.get("/policies/effective/", engine="prefill-0")["values"]["bidirectional_kv_xfer"])


def set_reuse(recorder: Recorder, is_on: bool, reason: str, say: Callable[[str], None]) -> int:
    """Publishes a fleet revision and prints each acknowledgement. Raises ``DemoError`` when one is missing."""
    body = {"scope": "fleet", "values": {"bidirectional_kv_xfer": is_on}, "reason": reason}
    number = int(recorder.post("/policies/", body)["number"])
    say(f"policy revision {number}: bidirectional_kv_xfer={str(is_on).lower()} ({reason})")
    deadline = time.monotonic() + WAIT_SECONDS
    acks: list[dict[str, object]] = []
    while time.monotonic() < deadline:
        acks = recorder.get(f"/policies/{number}/")["acks"]
        if acks and all(ack["state"] == "acked" for ack in acks):
            for ack in acks:
                say(f"  acked by {ack['enforcer']} after {ack['latency_ms']:.0f} ms, values read back")
            return number
        time.sleep(0.05)
    missing = ", ".join(f"{ack['enforcer']} ({ack['state']})" for ack in acks if ack["state"] != "acked")
    raise DemoError(f"revision {number} was not acknowledged by {missing or 'anyone'} within {WAIT_SECONDS:.0f} s")
