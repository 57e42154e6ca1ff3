"""The end of a reply, told from its last bytes whatever the API."""

import json

import pytest

from connector.router.endings import Ending
from connector.router.requests import Endpoint
from connector.router.streaming import TAIL_BYTES, Observer
from tests.connector.router.formats import (
    compact,
    message,
    messages_stream,
    named_event,
    output_message,
    response,
    responses_stream,
)
from tests.connector.router.sse import reply_stream

STREAMS = {
    Endpoint.CHAT: reply_stream(["a", "b"], 7),
    Endpoint.RESPONSES: responses_stream("resp_1", ["a", "b"], 7),
    Endpoint.MESSAGES: messages_stream(["a", "b"], 7),
}
BODIES = {
    Endpoint.CHAT: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}},
    Endpoint.RESPONSES: response("resp_1", [output_message('"usage":{"input_tokens":1}')], 7, 2, "completed"),
    Endpoint.MESSAGES: message([{"type": "text", "text": '"usage":{"input_tokens":1}'}], 7, 2, "end_turn"),
}


def seen(endpoint: Endpoint, pieces: list[bytes], is_events: bool = True) -> Ending:
    observer = Observer(is_events, keeps_reply=False)
    for piece in pieces:
        observer.see(piece)
    return Ending(endpoint, observer.tail(), is_events)


def facts(ending: Ending) -> tuple[int, int, bool, bool]:
    return ending.num_prompt_tokens, ending.num_output_tokens, ending.is_complete, ending.has_error


@pytest.mark.parametrize("endpoint", STREAMS)
def test_same_facts_however_the_stream_was_cut(endpoint: Endpoint) -> None:
    """Field report 45: cut at every byte."""
    whole = b"".join(STREAMS[endpoint])
    for position in range(1, len(whole)):
        assert facts(seen(endpoint, [whole[:position], whole[position:]])) == (7, 2, True, False)


@pytest.mark.parametrize("endpoint", STREAMS)
def test_stream_without_its_last_event_is_not_complete(endpoint: Endpoint) -> None:
    events = STREAMS[endpoint]
    for kept in range(len(events)):
        ending = seen(endpoint, events[:kept])
        assert not ending.is_complete
        assert ending.missing


@pytest.mark.parametrize("endpoint", BODIES)
def test_usage_of_whole_bodies(endpoint: Endpoint) -> None:
    for body in (compact(BODIES[endpoint]), json.dumps(BODIES[endpoint])):
        ending = seen(endpoint, [body.encode()], is_events=False)
        assert facts(ending) == (7, 2, True, False)


def test_last_event_longer_than_the_tail_still_ends_the_stream() -> None:
    events = responses_stream("resp_1", ["word " * TAIL_BYTES], 7)
    assert len(events[-1]) > 4 * TAIL_BYTES
    assert facts(seen(Endpoint.RESPONSES, events)) == (7, 1, True, False)


def test_errors_of_each_api_are_seen() -> None:
    failed = {"type": "error", "error": {"type": "internal_error", "message": "boom"}}
    ending = seen(Endpoint.MESSAGES, [*messages_stream(["a"], 7)[:3], named_event("error", failed)])
    assert (ending.has_error, ending.is_complete) == (True, False)
    told = {"type": "error", "code": "x", "message": "boom", "param": None, "sequence_number": 4}
    ending = seen(Endpoint.RESPONSES, [*responses_stream("r", ["a"], 7)[:3], named_event("error", told)])
    assert (ending.has_error, ending.is_complete) == (True, False)
    end = {"response": response("r", [], 7, 0, "failed"), "sequence_number": 4, "type": "response.failed"}
    assert seen(Endpoint.RESPONSES, [named_event("response.failed", end)]).has_error


def test_cached_tokens_are_part_of_anthropics_prompt() -> None:
    usage = {"input_tokens": 3, "cache_read_input_tokens": 64, "cache_creation_input_tokens": 1, "output_tokens": 2}
    body = {**message([], 0, 0, "end_turn"), "usage": usage}
    assert facts(seen(Endpoint.MESSAGES, [compact(body).encode()], is_events=False)) == (68, 2, True, False)
