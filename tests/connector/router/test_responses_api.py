"""The responses API: two legs, reuse by content, and state that only one engine has."""

import json
from typing import Any

import pytest

from connector.protocol import EngineState, Role
from connector.router.replies import digest_in_prompt, digest_of_reply
from connector.router.requests import Endpoint
from tests.connector.router.conftest import API_KEY, OTHER_KEY, Scene
from tests.connector.router.fake_engine import MODEL
from tests.connector.router.formats import compact, output_call, output_message, response, responses_stream
from tests.connector.router.waiting import eventually

PATH = "/v1/responses"


def asked(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


async def respond(scene: Scene, key: str = API_KEY, **fields: Any) -> dict[str, Any]:
    async with scene.post(PATH, {"model": MODEL, **fields}, key) as reply:
        assert reply.status == 200, await reply.read()
        value: dict[str, Any] = await reply.json()
        return value


async def refusal(scene: Scene, key: str = API_KEY, **fields: Any) -> dict[str, Any]:
    async with scene.post(PATH, {"model": MODEL, **fields}, key) as reply:
        assert reply.status == 400, await reply.read()
        error: dict[str, Any] = (await reply.json())["error"]
        return error


async def test_prefill_computes_one_token_and_keeps_nothing(scene: Scene) -> None:
    """Field report 27, for this API."""
    fields = {
        "input": "hi",
        "max_output_tokens": 500,
        "store": True,
        "stream": True,
        "stream_options": {"include_obfuscation": True},
        "request_id": "mine",
        "priority": -5,
        "kv_transfer_params": {"do_remote_prefill": True},
    }
    async with scene.post(PATH, {"model": MODEL, **fields}) as reply:
        text = await reply.read()
        assert reply.status == 200
    prefill, decode = scene.prefill.received[0].body, scene.decode.received[0].body
    assert (prefill["max_output_tokens"], prefill["stream"], prefill["store"]) == (1, False, False)
    assert not {"stream_options", "request_id", "priority", "max_tokens"} & prefill.keys()
    kept = {name: fields[name] for name in ("input", "max_output_tokens", "store", "stream", "stream_options")}
    assert {name: decode[name] for name in kept} == kept
    assert "priority" not in decode
    assert decode["kv_transfer_params"]["backhaul"]["offer"].startswith("p-offer-")
    assert decode["request_id"].startswith("resp_")
    assert text == b"".join(responses_stream(decode["request_id"], scene.decode.words, 7))
    await eventually(lambda: scene.control.turns, "the turn is recorded")
    assert (scene.control.turns[0].num_prompt_tokens, scene.control.turns[0].http_status) == (7, 200)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_plain_client_that_sends_its_items_back_reuses(scene: Scene, is_stream: bool) -> None:
    items: list[dict[str, Any]] = [asked("question 0")]
    for number in range(1, 4):
        async with scene.post(
            PATH, {"model": MODEL, "instructions": "Be terse.", "input": items, "stream": is_stream}
        ) as reply:
            await reply.read()
        await scene.until_leased(number)
        items += [{**output_message("Hello you"), "id": f"msg_{number}"}, asked(f"question {number}")]
    turns = [received.envelope for received in scene.prefill.received if received.envelope]
    assert len({turn.session_id for turn in turns}) == 1
    offers = [received.offer for received in scene.prefill.received]
    assert offers == [None, *(f"d-offer-{turn.turn_id}" for turn in turns[:-1])]


async def test_text_input_and_its_item_are_one_conversation(scene: Scene) -> None:
    await respond(scene, input="hi")
    await scene.until_leased(1)
    await respond(scene, input=[{"role": "user", "content": "hi"}, output_message("Hello you"), asked("more")])
    assert scene.prefill.received[1].offer is not None


async def test_other_instructions_share_nothing(scene: Scene) -> None:
    await respond(scene, input="hi", instructions="Be terse.")
    await scene.until_leased(1)
    await respond(scene, input="hi", instructions="Be verbose.")
    assert scene.prefill.received[1].offer is None


async def test_next_turn_by_id_goes_to_the_engine_that_keeps_the_response(scene: Scene) -> None:
    other = await scene.add_engine("d1", Role.DECODE)
    await scene.publish()
    first = await respond(scene, input="hi")
    keeper, idle = (scene.decode, other) if scene.decode.received else (other, scene.decode)
    second = await respond(scene, input="more", previous_response_id=first["id"])
    third = await respond(scene, input="and more", previous_response_id=second["id"])
    await respond(scene, input="a branch", previous_response_id=first["id"])
    assert idle.received == []
    assert len(scene.prefill.received) == 1, "no other engine can render the prompt"
    assert [leg.body.get("previous_response_id") for leg in keeper.received[1:]] == [
        first["id"],
        second["id"],
        first["id"],
    ]
    assert len({leg.envelope.session_id for leg in keeper.received if leg.envelope}) == 1
    assert len({first["id"], second["id"], third["id"]}) == 3
    assert all(len(one["id"]) < 128 for one in (first, second, third))


async def test_restarted_router_still_finds_the_response(scene: Scene) -> None:
    first = await respond(scene, input="hi")
    session = scene.decode.received[0].envelope
    await scene.stop_router()
    await scene.start_router()
    await respond(scene, input="more", previous_response_id=first["id"])
    again = scene.decode.received[1].envelope
    assert session is not None
    assert again is not None
    assert again.session_id == session.session_id


async def test_foreign_unknown_and_lost_responses_are_refused_alike(scene: Scene) -> None:
    first = (await respond(scene, input="hi"))["id"]
    count = len(scene.decode.received)
    flipped = first[:-1] + ("0" if first[-1] != "0" else "1")
    odd = ["resp_1", "x" * 100, "résp_", first[:-1], flipped, first.upper(), first.replace("resp_", "")]
    errors = [await refusal(scene, input="x", previous_response_id=identity) for identity in odd]
    errors.append(await refusal(scene, OTHER_KEY, input="x", previous_response_id=first))
    await scene.decode.feed.change(EngineState.READY, "another process")
    await eventually(lambda: scene.live.fleet.get("d0").incarnation == "another process", "the restart is known")
    errors.append(await refusal(scene, input="x", previous_response_id=first))
    assert {json.dumps(error) for error in errors} == {json.dumps(errors[0])}
    assert (errors[0]["param"], errors[0]["code"]) == ("previous_response_id", "previous_response_not_found")
    assert len(scene.decode.received) == count


async def test_keeper_that_fails_is_not_replaced(scene: Scene) -> None:
    await scene.add_engine("d1", Role.DECODE)
    first = await respond(scene, input="hi")
    await scene.decode.stop_serving()
    async with scene.post(PATH, {"model": MODEL, "input": "x", "previous_response_id": first["id"]}) as reply:
        assert reply.status == 503


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": "hi", "background": True}, "background"),
        ({"input": "hi", "background": "yes"}, "background"),
        ({"input": "hi", "conversation": {"id": "conv_1"}}, "conversation"),
        ({"input": "hi", "conversation": "conv_1"}, "conversation"),
        ({"input": "hi", "previous_response_id": 7}, "previous_response_id"),
        ({"input": "hi", "previous_response_id": "x" * 200}, "previous_response_id"),
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": "hi", "stream": 1}, "stream"),
        ({"input": "hi", "prompt_cache_key": 7}, "prompt_cache_key"),
        ({"input": "hi", "prompt_cache_key": "x" * 600}, "prompt_cache_key"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_name(scene: Scene, fields: dict[str, Any], param: str) -> None:
    assert (await refusal(scene, **fields))["param"] == param
    assert scene.prefill.received == scene.decode.received == []


@pytest.mark.parametrize("kind", ["code_interpreter", "container", "mcp", "web_search_preview"])
async def test_tools_that_the_engine_calls_itself_make_one_leg_without_params(scene: Scene, kind: str) -> None:
    await respond(scene, input="hi", tools=[{"type": kind}])
    assert scene.prefill.received == []
    assert "kv_transfer_params" not in scene.decode.received[0].body


async def test_functions_are_two_legs(scene: Scene) -> None:
    await respond(scene, input="hi", tools=[{"type": "function", "name": "f", "parameters": {}}])
    assert len(scene.prefill.received) == 1


REPLIES = [
    [output_message("Hello you")],
    [output_message("Hello"), output_call("f", '{"a": 1}')],
    [{"type": "reasoning", "id": "rs_1", "summary": [], "content": []}, output_call("f", "{}")],
]


@pytest.mark.parametrize("output", REPLIES)
def test_digest_of_a_reply_is_that_of_what_comes_back(output: list[dict[str, Any]]) -> None:
    body = response("r", output, 7, 2, "completed")
    end = {"response": body, "sequence_number": 1, "type": "response.completed"}
    stream = f"event: response.completed\ndata: {compact(end)}\n\n".encode()
    prompt = [asked("hi"), *output, asked("more")]
    found = {
        digest_in_prompt(Endpoint.RESPONSES, prompt, 1),
        digest_of_reply(Endpoint.RESPONSES, compact(body).encode(), is_stream=False),
        digest_of_reply(Endpoint.RESPONSES, stream, is_stream=True),
    }
    assert len(found) == 1
    assert found != {b""}
    assert digest_in_prompt(Endpoint.RESPONSES, prompt, 0) == b""
    assert found != {digest_in_prompt(Endpoint.RESPONSES, [output_message("else")], 0)}


@pytest.mark.parametrize("body", [b"", b"{}", b"[", b'{"output": 7}', b"data: {}\n\n", b"data: [DONE]\n\n", b"\xff"])
def test_digest_of_an_odd_reply_is_none(body: bytes) -> None:
    for endpoint in Endpoint:
        for is_stream in (False, True):
            told = digest_of_reply(endpoint, body, is_stream)
            assert told == b"" or (is_stream and endpoint in (Endpoint.CHAT, Endpoint.MESSAGES))
