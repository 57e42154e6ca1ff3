"""Clients as they come: the official ``openai`` one, and raw bytes that no client library would send."""

import asyncio
import json

import openai
import pytest

from tests.connector.router.conftest import API_KEY, MODEL, Scene, user


def client_of(scene: Scene, key: str = API_KEY) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{scene.url}/v1", api_key=key, max_retries=0)


async def test_official_client_streams_and_reads_whole_replies(scene: Scene) -> None:
    async with client_of(scene) as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[user("hi")],  # type: ignore[list-item]
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"conversation_id": "c1"},
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello you"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 2
        reply = await client.chat.completions.create(model=MODEL, messages=[user("hi")])  # type: ignore[list-item]
        assert reply.choices[0].message.content == "Hello you"
        assert [model.id async for model in client.models.list()] == [MODEL]


async def test_official_client_raises_its_own_errors(scene: Scene) -> None:
    async with client_of(scene) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="nobody", messages=[user("hi")])  # type: ignore[list-item]
        assert missing.value.param == "model"
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model=MODEL, messages=[])
        scene.draining.add("d0")
        await scene.publish()
        with pytest.raises(openai.InternalServerError) as away:
            await client.chat.completions.create(model=MODEL, messages=[user("hi")])  # type: ignore[list-item]
        assert away.value.status_code == 503
    async with client_of(scene, "wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()


async def exchange(scene: Scene, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(scene.url.rpartition(":")[2]))
    writer.write(request)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


def raw(path: bytes = b"/v1/chat/completions", headers: bytes = b"", body: bytes = b"") -> bytes:
    head = b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer " + API_KEY.encode()
    return head + b"\r\n" + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


BODY = json.dumps({"model": MODEL, "messages": [user("hi")]}).encode()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (raw(headers=b"X-Session-ID: \xff\xfe\r\n", body=BODY), b"400"),
        (raw(headers="X-Session-ID: grüße ✓\r\n".encode(), body=BODY), b"200"),
        (raw(headers=b"X-Odd: \xff\xfe\r\n", body=BODY), b"200"),
        (raw(headers=b"traceparent: \xff\r\ntracestate: \xff\r\n", body=BODY), b"200"),
        (raw(path=b"/v1/%ff%fe", body=BODY), b"404"),
        (raw(path=b"/v1/\xff", body=BODY), b"40"),
        (raw(headers=b"X-Big: " + b"x" * 20_000 + b"\r\n", body=BODY), b"431"),
        (b"nonsense\r\n\r\n", b"400"),
        (raw(body=b"\x00" * 50), b"400"),
        (raw(headers=b"Content-Encoding: gzip\r\n", body=BODY), b"400"),
    ],
)
async def test_odd_bytes_get_a_status_and_the_router_lives_on(
    scene: Scene, request_bytes: bytes, status: bytes
) -> None:
    answer = await exchange(scene, request_bytes)
    assert answer.startswith((b"HTTP/1.1 " + status, b"HTTP/1.0 " + status)), answer[:300]
    await scene.chat([user("still there?")])


async def test_body_that_never_comes_holds_nothing(scene: Scene) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(scene.url.rpartition(":")[2]))
    writer.write(raw(body=BODY)[:-10])
    await scene.chat([user("meanwhile")])
    writer.close()
    await scene.chat([user("afterwards")])
    assert scene.live.turns.num_active == 0
    assert len(scene.decode.received) == 2
    assert await reader.read() == b""


async def test_http_1_0_client_gets_its_stream(scene: Scene) -> None:
    body = json.dumps({"model": MODEL, "messages": [user("hi")], "stream": True}).encode()
    answer = await exchange(scene, raw(body=body).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    head, _, payload = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0]
    assert payload == b"".join(scene.decode.events)
