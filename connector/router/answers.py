"""Heads of answers that engines gave: their own fields, and the few that the router adds."""

from connector.http import Pairs, Reply, Request, Response, field
from connector.router.anthropic_errors import in_anthropic_shape
from connector.router.choice.telling import header_of
from connector.router.headers import headers_to_client
from connector.router.requests import Endpoint
from connector.router.turnstate import Turn

CHOICE_HEADER = "X-Backhaul-Choice"
"""For operators' keys only: it names engines."""


def pairs_to_client(http: Request, turn: Turn, reply: Reply) -> Pairs:
    pairs = headers_to_client(reply.headers)
    if reply.headers.raw(b"x-request-id") is None:
        pairs.append(field("X-Request-Id", turn.turn_id))
    if http.is_operator and turn.plan is not None:
        pairs.append(field(CHOICE_HEADER, header_of(turn.plan)))
    return pairs


def refused_by_prefill(http: Request, turn: Turn, refusal: Reply) -> Response:
    """A 4xx of the prefill engine is the client's answer, as it came; Anthropic's clients get it in their shape."""
    pairs = [pair for pair in pairs_to_client(http, turn, refusal) if pair[0] != b"content-length"]
    turn.http_status = refusal.status
    turn.prefill_error = f"status {refusal.status}"
    is_openais = turn.request.endpoint is not Endpoint.MESSAGES
    body = refusal.body if is_openais else in_anthropic_shape(refusal.status, refusal.body)
    return Response(refusal.status, body, pairs, reason=refusal.reason)
