"""What the control plane recorded of one turn, found by the trace id that the client chose."""

import logging
import secrets
import time
from dataclasses import dataclass
from typing import Any

import httpx

SOON_SECONDS = 3.0
LATER_SECONDS = 60.0
"""A control plane that was away catches up within seconds of its return."""


logger = logging.getLogger(__name__)


class DemoError(Exception):
    """One sentence for the operator."""


@dataclass(frozen=True, kw_only=True)
class TurnRow:
    """One line of the table; ``transfer_ms`` is the D→P pull's, ``None`` when there was none."""

    prompt_tokens: int
    decision: str
    pulled_tokens: int
    transfer_ms: float | None
    ttft_ms: float


def new_traceparent() -> tuple[str, str]:
    """(trace id, W3C header) of a sampled trace."""
    trace_id = secrets.token_hex(16)
    return trace_id, f"00-{trace_id}-{secrets.token_hex(8)}-01"


class Recorder:
    """Reads the REST API with the operator's token."""

    def __init__(self, controlplane_url: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=f"{controlplane_url}/api/v1", headers=headers, timeout=10)

    def get(self, path: str, **params: str) -> Any:
        response = self._http.get(path, params=params)
        response.raise_for_status()
        return response.json()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        response = self._http.post(path, json=body)
        if response.status_code >= 400:
            raise DemoError(f"the control plane refused {path}: {response.text}")
        return response.json()

    def turn_row(self, trace_id: str, ttft_ms: float, within_seconds: float) -> TurnRow | None:
        """Once every sender has reported the turn; ``None`` when they have not in time, or nobody can be asked."""
        deadline = time.monotonic() + within_seconds
        while True:
            try:
                turn = self._turn_of(trace_id)
                if turn and turn["status"] and turn["prefill_decision"] and turn["decode_decision"]:
                    return self._row(turn, ttft_ms)
            except (httpx.TransportError, httpx.HTTPStatusError) as error:
                logger.info("record of trace %s: %s", trace_id, error)
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.1)

    def _turn_of(self, trace_id: str) -> dict[str, Any] | None:
        response = self._http.get(f"/traces/{trace_id}/")
        if response.status_code == 404:
            return None
        response.raise_for_status()
        for span in response.json()["spans"]:
            if span["name"] == "turn":
                turns = self.get(f"/sessions/{span['attributes']['backhaul.session_id']}/turns/")["results"]
                return next((turn for turn in turns if turn["trace_id"] == trace_id), None)
        return None

    def _row(self, turn: dict[str, Any], ttft_ms: float) -> TurnRow:
        transfers = self.get("/transfers/", turn=turn["id"], direction="D->P")["results"]
        return TurnRow(
            prompt_tokens=turn["prompt_tokens"],
            decision=turn["prefill_decision"],
            pulled_tokens=turn["reused_tokens"],
            transfer_ms=sum(row["duration_ms"] for row in transfers) if transfers else None,
            ttft_ms=ttft_ms,
        )
