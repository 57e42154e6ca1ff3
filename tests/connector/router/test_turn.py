"""Both legs of a turn: what engines are asked, and what the client gets."""

import json
from typing import Any

import pytest
from aiohttp import web

from connector.protocol import Decision, Role
from tests.connector.router.conftest import MODEL, Scene, assistant, user
from tests.connector.router.fake_engine import Received


async def test_prefill_leg_is_one_token_and_decode_leg_is_the_original(scene: Scene) -> None:
    body = {
        "model": MODEL,
        "messages": [user("hi")],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 400,
        "max_completion_tokens": 500,
        "min_tokens": 20,
        "n": 1,
        "temperature": 0.25,
        "seed": 2**70,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"maximum": 10**25}}}],
    }
    async with scene.post("/v1/chat/completions", body) as response:
        assert response.status == 200
        await response.read()
    (prefill,), (decode,) = scene.prefill.received, scene.decode.received
    assert prefill.body["max_tokens"] == prefill.body["max_completion_tokens"] == prefill.body["n"] == 1
    assert prefill.body["stream"] is False
    assert not {"stream_options", "min_tokens"} & prefill.body.keys()
    for sent in (prefill.body, decode.body):
        assert sent["seed"] == 2**70
        assert sent["tools"] == body["tools"]
    added = {"cache_salt", "kv_transfer_params"}
    assert {name: value for name, value in decode.body.items() if name not in added} == body


async def test_legs_carry_signed_envelopes_and_the_offer_goes_on(scene: Scene) -> None:
    await scene.chat([user("hi")])
    (prefill,), (decode,) = scene.prefill.received, scene.decode.received
    assert prefill.envelope is not None
    assert decode.envelope is not None
    assert (prefill.envelope.leg, decode.envelope.leg) == (Role.PREFILL, Role.DECODE)
    assert prefill.envelope.reason_without_offer is Decision.NO_PLACEMENT
    assert prefill.envelope.tenant == decode.envelope.tenant == "default"
    assert prefill.envelope.turn_id == decode.envelope.turn_id
    assert prefill.envelope.session_id == decode.envelope.session_id
    assert prefill.offer is None
    assert decode.offer == f"p-offer-{decode.envelope.turn_id}"
    assert decode.envelope.reason_without_offer is None
    for leg in (prefill, decode):
        assert leg.envelope is not None
        assert leg.headers["X-Request-Id"] == leg.envelope.turn_id
        assert leg.headers["traceparent"] == leg.envelope.traceparent
    stock = {"remote_engine_id": None, "remote_block_ids": None, "remote_host": None, "remote_port": None}
    params = dict(decode.body["kv_transfer_params"])
    params.pop("backhaul")
    assert params == {"do_remote_prefill": True, "do_remote_decode": False, **stock}


async def test_next_turn_offers_the_lease_of_the_turn_before(scene: Scene) -> None:
    await scene.chat([user("hi")])
    await scene.chat([user("hi"), assistant("Hello you"), user("more")])
    first, second = scene.decode.received[0].envelope, scene.prefill.received[1]
    assert first is not None
    assert second.envelope is not None
    assert second.offer == f"d-offer-{first.turn_id}"
    assert second.envelope.session_id == first.session_id
    assert second.envelope.reason_without_offer is None


@pytest.mark.parametrize("is_stream", [True, False])
async def test_completions_take_both_legs_too(scene: Scene, is_stream: bool) -> None:
    body = {"model": MODEL, "prompt": "once upon a time " * 40, "max_tokens": 9, "stream": is_stream}
    async with scene.post("/v1/completions", body) as response:
        assert response.status == 200
        await response.read()
    longer = {**body, "prompt": body["prompt"] + "there was"}
    async with scene.post("/v1/completions", longer) as response:
        await response.read()
    assert [r.path for r in scene.prefill.received] == ["/v1/completions"] * 2
    assert scene.prefill.received[0].body["max_tokens"] == 1
    assert "max_completion_tokens" not in scene.prefill.received[0].body
    first = scene.decode.received[0].envelope
    assert first is not None
    assert scene.prefill.received[1].offer == f"d-offer-{first.turn_id}"


async def test_client_cannot_set_what_names_engines_or_others(scene: Scene) -> None:
    smuggled: dict[str, Any] = {
        "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.0.0.1"},
        "ec_transfer_params": {"x": 1},
        "cache_salt": "mine",
        "priority": -5,
        "request_id": "other",
        "session_id": "other",
        "data_parallel_rank": 3,
        "conversation_id": "c1",
    }
    nested = {**smuggled, "keep": 1}
    body = {"model": MODEL, "messages": [user("hi")], **smuggled, "vllm_xargs": nested}
    body["extra_body"] = {"vllm_xargs": {**nested}, **smuggled}
    headers = {
        "X_data_parallel_rank": "2",
        "X_Vllm_Priority": "-9",
        "X_Request_Id": "chosen",
        "X_Session_ID": "s",
        "X_API_Key": "secret",
    }
    async with scene.post("/v1/chat/completions", body, **headers) as response:
        assert response.status == 200
        await response.read()
    for received in (*scene.prefill.received, *scene.decode.received):
        sent = received.body
        assert sent["vllm_xargs"] == {"keep": 1}
        assert sent["extra_body"] == {"vllm_xargs": {"keep": 1}}
        assert sent["cache_salt"] != "mine"
        assert "remote_host" not in json.dumps(sent["kv_transfer_params"]).replace('"remote_host": null', "")
        gone = smuggled.keys() - {"kv_transfer_params", "cache_salt"}
        assert not gone & sent.keys()
        for name in ("X-Data-Parallel-Rank", "X-Vllm-Priority", "X-Session-ID", "X-API-Key"):
            assert name not in received.headers
        assert received.headers["X-Request-Id"] != "chosen"


async def test_end_to_end_headers_pass_and_hop_by_hop_ones_do_not(scene: Scene) -> None:
    """Field report 43 (vllm-project/router#190, vllm-project/production-stack#733)."""
    headers = {"X_Custom": "kept", "Connection": "x-foo", "X_Foo": "hop", "User_Agent": "agent/1", "TE": "trailers"}
    async with scene.post("/v1/chat/completions", {"model": MODEL, "messages": [user("hi")]}, **headers) as response:
        await response.read()
    for received in (*scene.prefill.received, *scene.decode.received):
        sent = received.headers
        assert sent["X-Custom"] == "kept"
        assert sent["User-Agent"] == "agent/1"
        assert "X-Foo" not in sent
        assert "TE" not in sent
        assert sent["Host"] in (scene.prefill.url[7:], scene.decode.url[7:])
        assert int(sent["Content-Length"]) == len(received.raw)
        assert sent.getall("Authorization") == ["Bearer engine-key-test"]


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        ("/v1/chat/completions", {"messages": [user("hi")], "n": 3}, "n"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "prompt_list"),
        ("/v1/completions", {"prompt": [[1, 2], [3]]}, "prompt_list"),
        ("/v1/completions", {"prompt": "a", "use_beam_search": True}, "beam_search"),
        ("/v1/completions", {"prompt_embeds": "aaaa"}, "prompt_embeds"),
        ("/v1/completions", {"prompt": "a", "prompt_logprobs": 0}, "prompt_logprobs"),
        ("/v1/completions", {"prompt": "a", "echo": True, "logprobs": 1}, "echo"),
        ("/v1/chat/completions", {"messages": [user("hi")], "echo": True}, "echo"),
    ],
)
async def test_request_that_two_engines_cannot_share_goes_to_decode_alone(
    scene: Scene, path: str, fields: dict[str, Any], reason: str
) -> None:
    async with scene.post(path, {"model": MODEL, **fields}) as response:
        assert response.status == 200
        await response.read()
    assert scene.prefill.received == []
    (decode,) = scene.decode.received
    assert {name: decode.body[name] for name in fields} == fields
    if reason in ("prompt_logprobs", "echo"):
        assert decode.envelope is not None
        assert decode.envelope.reason_without_offer is Decision.UNSUPPORTED
    else:
        assert "kv_transfer_params" not in decode.body
    assert scene.metric('decode_alone_total{reason="one_leg"}') == 1
    assert scene.access_lines()[-1]["decision"] == "recomputed_unsupported"


async def test_one_token_prompt_and_echo_without_logprobs_take_both_legs(scene: Scene) -> None:
    async with scene.post("/v1/completions", {"model": MODEL, "prompt": [5], "echo": True, "n": 1}) as response:
        assert response.status == 200
        await response.read()
    assert len(scene.prefill.received) == len(scene.decode.received) == 1


async def test_without_a_prefill_engine_decode_computes_alone(scene: Scene) -> None:
    scene.draining.add("p0")
    await scene.publish()
    await scene.chat([user("hi")])
    (decode,) = scene.decode.received
    assert decode.offer is None
    assert decode.envelope is not None
    assert decode.envelope.reason_without_offer is Decision.NO_PLACEMENT
    assert scene.metric('decode_alone_total{reason="no_prefill_engine"}') == 1


async def test_prefill_reply_without_an_offer_is_no_error(scene: Scene) -> None:
    """The one token may end the text, and then vLLM gives no params."""

    async def no_params(request: web.BaseRequest, received: Received) -> web.Response:
        return web.json_response({"choices": [], "usage": {"prompt_tokens": 3}, "kv_transfer_params": None})

    scene.prefill.script = no_params
    await scene.chat([user("hi")])
    assert scene.decode.received[0].offer is None
    assert scene.metric('decode_alone_total{reason="no_offer"}') == 1
