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
    waiting = enforcers(recorder)
    deadline = time.monotonic() + WAIT_SECONDS
    while waiting and time.monotonic() < deadline:
        for ack in recorder.get(f"/policies/{number}/")["acks"]:
            if ack["enforcer"] in waiting and ack["state"] == "acked":
                waiting.discard(ack["enforcer"])
                say(f"  acked by {ack['enforcer']} after {ack['latency_ms']:.0f} ms, values read back")
        time.sleep(0.05)
    if waiting:
        raise DemoError(f"revision {number} was not acked by {', '.join(sorted(waiting))} in {WAIT_SECONDS:.0f} s")
    return number


def enforcers(recorder: Recorder) -> set[str]:
    """Those that are there: an engine that fell silent acknowledges nothing, and serves nothing either."""
    engines = {row["name"] for row in recorder.get("/engines/")["results"] if row["state"] == "ready"}
    return engines | {row["name"] for row in recorder.get("/routers/")["results"] if row["connected"]}
