"""Which path is served how; the table in README.md says the same, and a test compares the two."""

from enum import StrEnum

from connector.router.requests.endpoint import Endpoint


class Mode(StrEnum):
    TWO_LEGS = "two legs"
    ONE_LEG = "one leg"
    HERE = "answered here"
    REFUSED = "refused"


SERVED: dict[tuple[str, str], Mode] = {
    ("POST", Endpoint.CHAT.value): Mode.TWO_LEGS,
    ("POST", Endpoint.COMPLETIONS.value): Mode.TWO_LEGS,
    ("POST", Endpoint.RESPONSES.value): Mode.TWO_LEGS,
    ("POST", Endpoint.MESSAGES.value): Mode.TWO_LEGS,
    ("POST", "/v1/messages/count_tokens"): Mode.ONE_LEG,
    ("POST", "/tokenize"): Mode.ONE_LEG,
    ("POST", "/detokenize"): Mode.ONE_LEG,
    ("GET", "/v1/models"): Mode.HERE,
}

NO_GENERATION = "It generates nothing, so it gains nothing from two legs; ask an engine that serves such a model."
KEPT_BY_ONE = "Responses are kept by the engine that made them; go on from one by 'previous_response_id'."

REFUSED: dict[str, str] = {
    "/v1/chat/completions/batch": "Its conversations share one request; send each by itself.",
    "/v1/embeddings": NO_GENERATION,
    "/v1/rerank": NO_GENERATION,
    "/v1/score": NO_GENERATION,
    "/v1/audio/transcriptions": NO_GENERATION,
    "/v1/audio/translations": NO_GENERATION,
    "/pooling": NO_GENERATION,
    "/classify": NO_GENERATION,
    "/inference/v1/generate": "It takes token ids and parameters that only the router may set.",
    "/v1/responses/{id}": KEPT_BY_ONE,
}
"""Paths of vLLM's that are known and not served: 501 with the reason, where an unknown path gets 404."""

_RESPONSES = Endpoint.RESPONSES.value + "/"


def why_refused(path: str) -> str:
    """Empty for a path that isn't known at all."""
    return REFUSED.get("/v1/responses/{id}" if path.startswith(_RESPONSES) else path, "")


def is_anthropic(path: str) -> bool:
    """Whether its callers expect Anthropic's errors."""
    return path == Endpoint.MESSAGES.value or path.startswith(Endpoint.MESSAGES.value + "/")
