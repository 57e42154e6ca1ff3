"""Parses a client's request: what is right goes on, what a client may not set is stripped, the rest is a 400."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeGuard

import msgspec
import orjson

from connector.router.errors import ApiError, bad_request

MAX_MODEL_CHARS = 256
MAX_CLIENT_KEY_CHARS = 512
SESSION_HEADER = "X-Session-ID"


class Endpoint(StrEnum):
    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


class OneLeg(StrEnum):
    """Why a request goes to a decode engine alone, which then computes all of it."""

    SEVERAL_CHOICES = "n"
    SEVERAL_PROMPTS = "prompt_list"
    BEAM_SEARCH = "beam_search"
    PROMPT_EMBEDS = "prompt_embeds"
    PROMPT_LOGPROBS = "prompt_logprobs"
    ECHO = "echo"
    NO_OUTPUT = "max_tokens_zero"


STRIPPED = frozenset(
    (
        "kv_transfer_params",
        "ec_transfer_params",
        "cache_salt",
        "priority",
        "request_id",
        "session_id",
        "data_parallel_rank",
        "conversation_id",
        "kv_cache_report_mode",
    )
)
"""Fields that name engines, other requests or KV blocks, or rank one client's requests over another's. vLLM 0.32
ignores unknown fields, but reads all of these; ``vllm_xargs`` and ``extra_body`` are searched as well."""

NESTED = ("vllm_xargs", "extra_body", "extra_args")

Fields = dict[str, msgspec.Raw]

_decode_fields = msgspec.json.Decoder(Fields).decode


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """``fields`` are the client's own bytes, member by member; ``prompt`` is decoded only to be hashed."""

    endpoint: Endpoint
    model: str
    stream: bool
    fields: Fields
    client_key: str
    one_leg: OneLeg | None
    messages: list[object] | None
    tools: object
    prompt: str | list[int] | None


def parse_request(endpoint: Endpoint, body: bytes, headers: Mapping[str, str]) -> TurnRequest:
    """The validated request. Raises ``ApiError`` 400 that names the field."""
    fields = _split(body)
    client_key = _client_key(fields, headers)
    _strip(fields)
    is_chat = endpoint is Endpoint.CHAT
    prompt = None if is_chat else _prompt(fields)
    return TurnRequest(
        endpoint=endpoint,
        model=_model(fields),
        stream=_flag(fields, "stream"),
        fields=fields,
        client_key=client_key,
        one_leg=_one_leg(endpoint, fields, prompt),
        messages=_messages(fields) if is_chat else None,
        tools=_value(fields, "tools") if is_chat else None,
        prompt=prompt if isinstance(prompt, str) or _is_token_list(prompt) else None,
    )


def _split(body: bytes) -> Fields:
    if not body:
        raise bad_request("The request has no body; send a JSON object.")
    try:
        body.decode()
        return _decode_fields(body)
    except msgspec.ValidationError:
        raise bad_request("The request body must be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"The request body is not valid JSON: {error}") from None


def _value(fields: Fields, name: str) -> object:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        value: object = orjson.loads(memoryview(raw))
    except orjson.JSONDecodeError as error:
        raise bad_request(f"'{name}' is not valid JSON: {error.msg}", name) from None
    return value


def _strip(fields: Fields) -> None:
    for name in STRIPPED:
        fields.pop(name, None)
    for name in NESTED:
        if name in fields:
            value = _value(fields, name)
            if _strip_nested(value):
                fields[name] = msgspec.Raw(orjson.dumps(value))


def _strip_nested(value: object, depth: int = 3) -> bool:
    """Removes stripped names from a nested object in place, ``depth`` levels of ``NESTED`` deep; true if any went."""
    if not isinstance(value, dict) or depth == 0:
        return False
    found = STRIPPED & value.keys()
    for name in found:
        del value[name]
    deeper = [_strip_nested(value[name], depth - 1) for name in NESTED if name in value]
    return bool(found) or any(deeper)


def _client_key(fields: Fields, headers: Mapping[str, str]) -> str:
    """The conversation's key as the client gave it; the body's wins. Empty means none."""
    value = _value(fields, "conversation_id")
    name = "conversation_id"
    if value is None or value == "":
        value = headers.get(SESSION_HEADER, "")
        name = SESSION_HEADER
    if not isinstance(value, str):
        raise bad_request(f"'{name}' must be a string.", name)
    if not _is_text(value):
        raise bad_request(f"'{name}' must be valid UTF-8.", name)
    if len(value) > MAX_CLIENT_KEY_CHARS:
        raise bad_request(f"'{name}' must be at most {MAX_CLIENT_KEY_CHARS} characters long.", name)
    return value


def _is_text(value: str) -> bool:
    """False for headers whose bytes are no UTF-8: they arrive with lone surrogates in their place."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _model(fields: Fields) -> str:
    value = _value(fields, "model")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise bad_request("'model' must be a string.", "model")
    if len(value) > MAX_MODEL_CHARS:
        raise bad_request(f"'model' must be at most {MAX_MODEL_CHARS} characters long.", "model")
    return value


def _flag(fields: Fields, name: str) -> bool:
    value = _value(fields, name)
    if value is not None and not isinstance(value, bool):
        raise bad_request(f"'{name}' must be true or false.", name)
    return bool(value)


def _messages(fields: Fields) -> list[object]:
    messages = _value(fields, "messages")
    if not isinstance(messages, list):
        raise bad_request("'messages' must be a list of messages.", "messages")
    if not messages:
        raise bad_request("'messages' must not be empty.", "messages")
    for position, message in enumerate(messages):
        if not isinstance(message, dict):
            raise bad_request(f"'messages[{position}]' must be an object.", f"messages[{position}]")
    return messages


def _prompt(fields: Fields) -> object:
    prompt = _value(fields, "prompt")
    if prompt is None and "prompt_embeds" in fields:
        return None
    if not isinstance(prompt, (str, list)) or not prompt:
        raise bad_request("'prompt' must be a non-empty string or list.", "prompt")
    if isinstance(prompt, list) and not (_is_token_list(prompt) or _is_prompt_list(prompt)):
        raise bad_request("'prompt' must hold token ids (0 to 2^64-1), texts, or lists of token ids.", "prompt")
    return prompt


def _is_prompt_list(prompt: list[object]) -> bool:
    return all(isinstance(item, str) for item in prompt) or all(isinstance(item, list) for item in prompt)


def _is_token_list(prompt: object) -> TypeGuard[list[int]]:
    if not isinstance(prompt, list):
        return False
    return all(type(item) is int and item >= 0 for item in prompt)


def _one_leg(endpoint: Endpoint, fields: Fields, prompt: object) -> OneLeg | None:
    """The first reason for which prefill and decode can't share the request."""
    if "n" in fields and _value(fields, "n") not in (None, 1):
        return OneLeg.SEVERAL_CHOICES
    if "use_beam_search" in fields and _value(fields, "use_beam_search"):
        return OneLeg.BEAM_SEARCH
    if "prompt_embeds" in fields and _value(fields, "prompt_embeds") is not None:
        return OneLeg.PROMPT_EMBEDS
    if isinstance(prompt, list) and not _is_token_list(prompt):
        return OneLeg.SEVERAL_PROMPTS
    if "prompt_logprobs" in fields and _value(fields, "prompt_logprobs") is not None:
        return OneLeg.PROMPT_LOGPROBS
    needs_prompt_logits = endpoint is Endpoint.CHAT or _value(fields, "logprobs") is not None
    if needs_prompt_logits and "echo" in fields and _value(fields, "echo"):
        return OneLeg.ECHO
    if "max_tokens" in fields and _value(fields, "max_tokens") == 0:
        return OneLeg.NO_OUTPUT
    return None


def choose_model(request: TurnRequest, served: frozenset[str]) -> str:
    """The model to serve: the named one, or the only one there is when the client names none."""
    if request.model:
        return request.model
    if len(served) == 1:
        return next(iter(served))
    raise ApiError(400, "'model' must name one of the served models.", param="model", code="missing_required_parameter")
