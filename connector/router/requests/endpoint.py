"""The paths that make turns, and the reasons for which a turn has one leg."""

from enum import StrEnum


class Endpoint(StrEnum):
    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


class OneLeg(StrEnum):
    """Why a request goes to a decode engine alone, which then computes all of it."""

    SEVERAL_CHOICES = "n"
    SEVERAL_PROMPTS = "prompt_list"
    BEAM_SEARCH = "beam_search"
    PROMPT_EMBEDS = "prompt_embeds"
    PROMPT_LOGPROBS = "prompt_logprobs"
    ECHO = "echo"
    NO_OUTPUT = "max_tokens_zero"
    EARLIER_RESPONSE = "previous_response_id"
    ENGINE_TOOLS = "engine_tools"


SEQUENCES_OF_THEIR_OWN = frozenset(
    (OneLeg.SEVERAL_CHOICES, OneLeg.SEVERAL_PROMPTS, OneLeg.BEAM_SEARCH, OneLeg.PROMPT_EMBEDS, OneLeg.ENGINE_TOOLS)
)
"""Requests that are several sequences to the engine, or have no token ids: one envelope can't speak for them, so the
engine gets no transfer params at all and grants no lease."""
