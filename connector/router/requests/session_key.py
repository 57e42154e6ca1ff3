"""The conversation's key as the client or its agent gave it.

In this order; the first that says anything counts:

1. ``conversation_id`` of the body, 2. header ``X-Session-ID``: made for routers, so an odd one is a 400;
3. ``previous_response_id`` (see ``connector.router.earlier``: it names a turn, not a session, and isn't read here);
4. headers that coding agents send by themselves, where an odd one counts as none;
5. the session part of ``metadata.user_id`` (Claude Code); 6. ``prompt_cache_key``.

Without any, the conversation is recognised by its content.
"""

from collections.abc import Mapping

import orjson

from connector.router.errors import bad_request
from connector.router.requests.members import Fields, member, value_of

MAX_CLIENT_KEY_CHARS = 512
SESSION_HEADER = "X-Session-ID"

AGENT_HEADERS = (
    "X-Claude-Code-Session-Id",
    "X-OpenCode-Session",
    "Session-Id",
    "session_id",
    "X-Session-Affinity",
    "X-Amp-Thread-Id",
)
"""Claude Code since 2.1.86 (anthropics' gateway protocol; coder/aibridge#241), OpenCode (HKUDS/nanobot#5661,
anomalyco/opencode#31511, which sends ``X-Session-Id`` and ``X-Session-Affinity`` elsewhere), Codex with a hyphen today
and an underscore before and in pi (KarpelesLab/teamclaude#352, router-for-me/CLIProxyAPI#4452), Amp (CLIProxyAPI#3089).
``X-Client-Request-Id`` is left out: most clients make a new one for each request."""

_LEGACY_MARK = "_session_"


def own_key(fields: Fields, headers: Mapping[str, str]) -> str:
    """The key that the client chose for a router such as this. Empty means none. Raises ``ApiError`` 400."""
    value = value_of(fields, "conversation_id") if "conversation_id" in fields else None
    name = "conversation_id"
    if value is None or value == "":
        value = headers.get(SESSION_HEADER, "")
        name = SESSION_HEADER
    return _checked(name, value)


def agent_key(fields: Fields, headers: Mapping[str, str]) -> str:
    """The key that the client's agent or library sends anyway. Empty means none."""
    for header in AGENT_HEADERS:
        value = headers.get(header, "")
        if value and len(value) <= MAX_CLIENT_KEY_CHARS and _is_text(value):
            return value
    if "metadata" in fields:
        session = _session_of_user(member(value_of(fields, "metadata"), "user_id"))
        if session:
            return session
    if "prompt_cache_key" in fields:
        return _checked("prompt_cache_key", value_of(fields, "prompt_cache_key") or "")
    return ""


def _session_of_user(user_id: object) -> str:
    """Claude Code's ``user_<hash>_account_<id>_session_<uuid>``, or today the same three as JSON. Empty if neither:
    the id of a user alone says nothing about conversations."""
    if not isinstance(user_id, str) or len(user_id) > 2 * MAX_CLIENT_KEY_CHARS:
        return ""
    if user_id.startswith("{"):
        try:
            session = member(orjson.loads(user_id), "session_id")
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            return ""
    else:
        session = user_id.partition(_LEGACY_MARK)[2]
    is_usable = isinstance(session, str) and len(session) <= MAX_CLIENT_KEY_CHARS and _is_text(session)
    return session if is_usable and isinstance(session, str) else ""


def _checked(name: str, value: object) -> str:
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
