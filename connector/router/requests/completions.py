"""Completions: one text or one list of token ids in two legs; several prompts, embeddings and logprobs of the prompt
in one."""

from connector.router.errors import bad_request
from connector.router.requests import chat
from connector.router.requests.content import NO, ONE, Content, PrefillChanges
from connector.router.requests.endpoint import OneLeg
from connector.router.requests.members import Fields, is_set, is_token_list, refuse_foreign, value_of

PREFILL = PrefillChanges(frozenset(("stream_options", "min_tokens")), {"stream": NO, "max_tokens": ONE})


NOT_HERE = {
    "best_of": "Use 'n'.",
    "max_completion_tokens": "Use 'max_tokens'.",
    "max_output_tokens": "Use 'max_tokens'.",
    "tools": "Use chat completions.",
}
"""An old name and other APIs', which vLLM 0.32 ignores."""


def read(fields: Fields) -> Content:
    refuse_foreign(fields, NOT_HERE)
    prompt = _prompt(fields)
    is_single = isinstance(prompt, str) or is_token_list(prompt)
    return Content(one_leg=_one_leg(fields, is_single), prompt=prompt if is_single else None)  # type: ignore[arg-type]


def _prompt(fields: Fields) -> object:
    prompt = value_of(fields, "prompt")
    if prompt is None and "prompt_embeds" in fields:
        return None
    if not isinstance(prompt, (str, list)) or not prompt:
        raise bad_request("'prompt' must be a non-empty string or list.", "prompt")
    if isinstance(prompt, list) and not (is_token_list(prompt) or _is_prompt_list(prompt)):
        raise bad_request("'prompt' must hold token ids (0 to 2^64-1), texts, or lists of token ids.", "prompt")
    return prompt


def _is_prompt_list(prompt: list[object]) -> bool:
    return all(isinstance(item, str) for item in prompt) or all(isinstance(item, list) for item in prompt)


def _one_leg(fields: Fields, is_single: bool) -> OneLeg | None:
    if is_set(fields, "prompt_embeds"):
        return OneLeg.PROMPT_EMBEDS
    reason = chat.one_leg(fields)
    if reason in (OneLeg.SEVERAL_CHOICES, OneLeg.BEAM_SEARCH):
        return reason
    if not is_single:
        return OneLeg.SEVERAL_PROMPTS
    if reason is OneLeg.ECHO and value_of(fields, "logprobs") is None:
        # Without logprobs the prompt is only text put before the reply; decode knows it.
        return OneLeg.NO_OUTPUT if value_of(fields, "max_tokens") == 0 else None
    return reason
