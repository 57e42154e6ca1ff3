"""A request's members as the client's own bytes, and typed readers of single members.

Every reader raises ``ApiError`` 400 that names the member.
"""

from collections.abc import Mapping
from typing import TypeGuard

import msgspec
import orjson

from connector.router.errors import ApiError, bad_request

MAX_MODEL_CHARS = 256

Fields = dict[str, msgspec.Raw]

_decode_fields = msgspec.json.Decoder(Fields).decode


def split(body: bytes) -> Fields:
    """Each member once: of duplicate keys the last wins, here as at the engine, so that none is smuggled past."""
    if not body:
        raise bad_request("The request has no body; send a JSON object.")
    try:
        body.decode()
        return _decode_fields(body)
    except msgspec.ValidationError:
        raise bad_request("The request body must be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"The request body is not valid JSON: {error}") from None


def value_of(fields: Fields, name: str) -> object:
    """The decoded member; ``None`` when it is absent or null."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        value: object = orjson.loads(memoryview(raw))
    except orjson.JSONDecodeError as error:
        raise bad_request(f"'{name}' is not valid JSON: {error.msg}", name) from None
    return value


def flag(fields: Fields, name: str) -> bool:
    value = value_of(fields, name)
    if value is not None and not isinstance(value, bool):
        raise bad_request(f"'{name}' must be true or false.", name)
    return bool(value)


def is_set(fields: Fields, name: str) -> bool:
    """Neither absent nor null; costs nothing for what a client didn't send."""
    return name in fields and value_of(fields, name) is not None


def refuse_foreign(fields: Fields, hints: Mapping[str, str]) -> None:
    """Raises for a member of another API, which the engine would ignore. ``hints``: what to do instead, by name."""
    for name in hints.keys() & fields.keys():
        if value_of(fields, name) is not None:
            raise bad_request(f"'{name}' is not a field of this API. {hints[name]}", name)


def list_of_objects(fields: Fields, name: str, what: str) -> list[object]:
    """A list of at least one object. ``what``: the objects' plural."""
    items = value_of(fields, name)
    if not isinstance(items, list):
        raise bad_request(f"'{name}' must be a list of {what}.", name)
    if not items:
        raise bad_request(f"'{name}' must not be empty.", name)
    for position, item in enumerate(items):
        if not isinstance(item, dict):
            raise bad_request(f"'{name}[{position}]' must be an object.", f"{name}[{position}]")
    return items


def model_of(fields: Fields) -> str:
    """Empty when the client names none."""
    value = value_of(fields, "model")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise bad_request("'model' must be a string.", "model")
    if len(value) > MAX_MODEL_CHARS:
        raise bad_request(f"'model' must be at most {MAX_MODEL_CHARS} characters long.", "model")
    return value


def choose_model(named: str, served: frozenset[str]) -> str:
    """The model to serve: the named one, or the only one there is when the client names none."""
    if named:
        return named
    if len(served) == 1:
        return next(iter(served))
    raise ApiError(400, "'model' must name one of the served models.", param="model", code="missing_required_parameter")


def is_token_list(prompt: object) -> TypeGuard[list[int]]:
    if not isinstance(prompt, list):
        return False
    return all(type(item) is int and item >= 0 for item in prompt)


def member(value: object, name: str) -> object:
    """A member of a decoded value that may be no object at all."""
    return value.get(name) if isinstance(value, Mapping) else None
