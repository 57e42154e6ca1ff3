"""Where a reply's first token shows, and what its last bytes tell: usage, and whether it ended as its API says.

Every reader takes the reply's last kilobytes only. A stream of the responses API says all in its last event, which may
be longer than that: its end is told from the bytes that follow the response.
"""

from collections.abc import Callable

import orjson

from connector.router.requests.endpoint import Endpoint

MAX_USAGE_LINES = 4
"""With usage in every chunk the last one counts; a few lines after it may say null."""

MAX_USAGE_BYTES = 2048

_RESPONSE_ENDS = (b'"type":"response.completed"}', b'"type":"response.incomplete"}')
_RESPONSE_FAILURES = (b'"type":"response.failed"}',)


OPENINGS = {Endpoint.RESPONSES: b"\nevent: response.output_item.added"}
"""vLLM creates a response before its prompt is computed, and tells so in two events."""


class Ending:
    """``is_complete``: nothing is missing. ``has_error``: the engine itself said that it failed. ``num_cached_tokens``:
    of the prompt, what the engine had when it began; absent unless it tells (``--enable-prompt-tokens-details``)."""

    __slots__ = ("has_error", "is_complete", "num_cached_tokens", "num_output_tokens", "num_prompt_tokens")

    def __init__(self, endpoint: Endpoint, tail: bytes, is_events: bool) -> None:
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self.num_cached_tokens: int | None = None
        self.has_error = False
        self.is_complete = True
        if not is_events:
            self._read_usage_in(tail)
        else:
            _READERS[endpoint](self, tail)

    @property
    def missing(self) -> str:
        """What is wrong, for logs; empty if nothing."""
        return "error event" if self.has_error else "" if self.is_complete else "the stream ended too early"

    def _read_choices(self, tail: bytes) -> None:
        """Only lines that may hold usage or an error are parsed; a stream's last kilobytes hold some fifty events."""
        self.is_complete = tail.rstrip().endswith(b"[DONE]")
        self._read_usage_lines(tail)
        self._read_error(tail)

    def _read_message(self, tail: bytes) -> None:
        line = _last_line(tail)
        self.is_complete = line.get("type") == "message_stop"
        self._read_usage_lines(tail)
        self._read_error(tail)

    def _read_response(self, tail: bytes) -> None:
        """A response cut off by its token limit ends with ``response.completed`` too, as vLLM says it."""
        end = tail.rstrip()
        self.has_error = end.endswith(_RESPONSE_FAILURES) or _last_line(tail).get("type") == "error"
        self.is_complete = end.endswith(_RESPONSE_ENDS)
        if self.is_complete:
            self._read_usage_in(end)

    def _read_usage_lines(self, tail: bytes) -> None:
        before = len(tail)
        for _ in range(MAX_USAGE_LINES):
            place = tail.rfind(b'"usage"', 0, before)
            if place < 0:
                return
            line, before = _line_around(tail, place)
            if self._take(_load(line).get("usage")):
                return

    def _read_error(self, tail: bytes) -> None:
        place = tail.rfind(b'"error"')
        if place >= 0:
            self.has_error = isinstance(_load(_line_around(tail, place)[0]).get("error"), dict)

    def _read_usage_in(self, tail: bytes) -> None:
        """Inside a JSON string the quotes of ``"usage":`` would be escaped, so the last one is the member itself."""
        start = tail.rfind(b'"usage":')
        if start < 0:
            return
        begin = start + len(b'"usage":')
        end = tail.find(b"}", begin)
        while end > 0:
            if self._take(_load(tail[begin : end + 1])):
                return
            end = tail.find(b"}", end + 1) if end - begin < MAX_USAGE_BYTES else -1

    def _take(self, usage: object) -> bool:
        """Both families' names. Anthropic counts cached tokens apart, and they are part of the prompt."""
        if not isinstance(usage, dict):
            return False
        prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if prompt is None:
            prompt, output = usage.get("input_tokens"), usage.get("output_tokens")
        if not isinstance(prompt, int):
            return False
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
        held = details.get("cached_tokens") if isinstance(details, dict) else usage.get("cache_read_input_tokens")
        self.num_cached_tokens = held if isinstance(held, int) and held >= 0 else None
        cached = (usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens"))
        self.num_prompt_tokens = prompt + sum(count for count in cached if isinstance(count, int))
        self.num_output_tokens = output if isinstance(output, int) else 0
        return True


_READERS: dict[Endpoint, Callable[[Ending, bytes], None]] = {
    Endpoint.CHAT: Ending._read_choices,
    Endpoint.COMPLETIONS: Ending._read_choices,
    Endpoint.RESPONSES: Ending._read_response,
    Endpoint.MESSAGES: Ending._read_message,
}


def _last_line(data: bytes) -> dict[str, object]:
    """The data of the last line that isn't empty."""
    end = data.rstrip()
    return _load(_line_around(end, len(end))[0])


def _line_around(data: bytes, place: int) -> tuple[bytes, int]:
    """What follows ``data:`` on the line that holds ``place``, and where the line begins."""
    begin = max(data.rfind(b"\n", 0, place), data.rfind(b"\r", 0, place)) + 1
    end = min((i for i in (data.find(b"\n", place), data.find(b"\r", place)) if i >= 0), default=len(data))
    line = data[begin:end]
    return (line[5:] if line.startswith(b"data:") else b""), begin


def _load(data: bytes) -> dict[str, object]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
