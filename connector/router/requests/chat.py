"""Chat completions: messages and tools; reads what vLLM's ``ChatCompletionRequest`` can't do in two legs."""

from connector.router.requests.content import NO, ONE, Content, PrefillChanges
from connector.router.requests.endpoint import OneLeg
from connector.router.requests.members import Fields, is_set, list_of_objects, refuse_foreign, value_of

PREFILL = PrefillChanges(
    frozenset(("stream_options", "min_tokens")),
    {"stream": NO, "max_tokens": ONE, "max_completion_tokens": ONE},
)


NOT_HERE = {
    "functions": "Use 'tools'.",
    "function_call": "Use 'tool_choice'.",
    "max_output_tokens": "Use 'max_completion_tokens'.",
}
"""OpenAI's old names and another API's, which vLLM 0.32 ignores."""


def read(fields: Fields) -> Content:
    refuse_foreign(fields, NOT_HERE)
    return Content(
        one_leg=one_leg(fields),
        messages=list_of_objects(fields, "messages", "messages"),
        root=value_of(fields, "tools"),
    )


def one_leg(fields: Fields) -> OneLeg | None:
    """The first reason for which prefill and decode can't share the request."""
    if "n" in fields and value_of(fields, "n") not in (None, 1):
        return OneLeg.SEVERAL_CHOICES
    if "use_beam_search" in fields and value_of(fields, "use_beam_search"):
        return OneLeg.BEAM_SEARCH
    if is_set(fields, "prompt_logprobs"):
        return OneLeg.PROMPT_LOGPROBS
    if "echo" in fields and value_of(fields, "echo"):
        return OneLeg.ECHO
    if "max_tokens" in fields and value_of(fields, "max_tokens") == 0:
        return OneLeg.NO_OUTPUT
    return None
