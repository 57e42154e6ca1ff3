"""One trace a turn, with a span for every transfer under the leg that caused it. Real engines."""

import uuid
from typing import Any

from tests.e2e.stack import Stack, eventually
from tests.e2e.test_conversations import SYSTEM, client_of, say, turns_of


async def spans_of(stack: Stack, trace_id: str, count: int) -> list[dict[str, Any]]:
    async def complete() -> list[dict[str, Any]]:
        async with stack.rest() as rest:
            response = await rest.get(f"/traces/{trace_id}/")
        spans: list[dict[str, Any]] = response.json()["spans"] if response.status_code == 200 else []
        return spans if len(spans) >= count else []

    return await eventually(complete, within_seconds=20, what=f"{count} spans of trace {trace_id}")


async def test_pulling_turn_has_both_transfers_under_their_legs(stack: Stack) -> None:
    messages = [{"role": "system", "content": SYSTEM + uuid.uuid4().hex}]
    async with client_of(stack) as client:
        await say(client, messages, "First.")
        await say(client, messages, "Second.")
    first, second = await turns_of(stack, 2)
    assert first["trace_id"] != second["trace_id"]
    spans = await spans_of(stack, second["trace_id"], 6)
    by_id = {span["span_id"]: span for span in spans}
    assert len([span for span in spans if span["name"] == "turn"]) == 1
    transfers = [span for span in spans if span["name"] == "kv.transfer"]
    parents = {span["attributes"]["backhaul.direction"]: by_id[span["parent_span_id"]]["name"] for span in transfers}
    assert parents == {"D->P": "prefill", "P->D": "decode"}
    for leg in ("place", "prefill", "decode"):
        (span,) = (span for span in spans if span["name"] == leg)
        assert by_id[span["parent_span_id"]]["name"] == "turn"
    rows = await stack.rows("/transfers/", turn=second["id"])
    assert {(row["trace_id"], row["span_id"]) for row in rows} == {
        (span["trace_id"], span["span_id"]) for span in transfers
    }


async def test_first_turn_has_only_the_forward_transfer(stack: Stack) -> None:
    messages = [{"role": "system", "content": SYSTEM + uuid.uuid4().hex}]
    async with client_of(stack) as client:
        await say(client, messages, "Only.")
    (turn,) = await turns_of(stack, 1)
    spans = await spans_of(stack, turn["trace_id"], 5)
    directions = [span["attributes"]["backhaul.direction"] for span in spans if span["name"] == "kv.transfer"]
    assert directions == ["P->D"]
    assert turn["prefill_decision"] == "recomputed_no_placement"
