"""TLS by real handshakes on loopback: what is refused, what is trusted, and certificates that change."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from connector.http import (
    EnginePool,
    ExchangeFailedError,
    HttpServer,
    Limits,
    Target,
    TlsFileError,
    client_context,
    server_context,
    steady_context,
)
from tests.connector.certificates import Pair, make_authority, make_server, trusting
from tests.connector.http.wires import GET, Echo

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def authority(tmp_path: Path) -> Pair:
    return make_authority(tmp_path, "authority")


@pytest.fixture
def pair(tmp_path: Path, authority: Pair) -> Pair:
    return make_server(tmp_path, "first", authority)


class Listening:
    def __init__(self, pair: Pair) -> None:
        self.context = server_context(pair.cert, pair.key)
        self.server = HttpServer(Echo(), Limits(max_body_bytes=1 << 20, head_seconds=0.4))

    async def start(self) -> None:
        await self.server.start("127.0.0.1", 0, tls=steady_context(lambda: self.context))

    async def connect(self, context: ssl.SSLContext | None) -> Streams:
        return await asyncio.open_connection("127.0.0.1", self.server.port, ssl=context)


@pytest.fixture
async def listening(pair: Pair) -> AsyncIterator[Listening]:
    found = Listening(pair)
    await found.start()
    yield found
    await found.server.close()


def common_name(writer: asyncio.StreamWriter) -> str:
    certificate = writer.get_extra_info("peercert")
    return dict(field for part in certificate["subject"] for field in part)["commonName"]


async def ask(streams: Streams) -> bytes:
    reader, writer = streams
    writer.write(GET)
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(len(b"GET /a "))
    return head


async def test_new_handshakes_take_the_new_certificate_and_open_connections_go_on(
    tmp_path: Path, authority: Pair, listening: Listening
) -> None:
    trusted = trusting(authority)
    before = await listening.connect(trusted)
    assert (await ask(before)).startswith(b"HTTP/1.1 200 ")
    second = make_server(tmp_path, "second", authority)
    listening.context = server_context(second.cert, second.key)
    after = await listening.connect(trusted)
    assert (common_name(before[1]), common_name(after[1])) == ("first", "second")
    for streams in (before, after):
        assert (await ask(streams)).startswith(b"HTTP/1.1 200 ")
        streams[1].close()


async def test_plain_http_at_the_tls_port_is_closed_and_harms_nobody(authority: Pair, listening: Listening) -> None:
    reader, writer = await listening.connect(None)
    writer.write(GET)
    assert b"HTTP" not in await reader.read()
    writer.close()
    streams = await listening.connect(trusting(authority))
    assert (await ask(streams)).startswith(b"HTTP/1.1 200 ")
    streams[1].close()


async def test_handshake_that_does_not_come_ends(listening: Listening) -> None:
    reader, writer = await listening.connect(None)
    assert await reader.read() == b""
    writer.close()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1")
async def test_older_versions_than_1_2_are_not_spoken(authority: Pair, pair: Pair, listening: Listening) -> None:
    old = trusting(authority)
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await listening.connect(old)
    assert client_context(authority.cert).minimum_version is ssl.TLSVersion.TLSv1_2


async def test_client_speaks_to_who_it_trusts_by_name(authority: Pair, listening: Listening) -> None:
    trusted = client_context(authority.cert)
    engines = EnginePool(connect_seconds=5, idle_seconds=3, silence_seconds=5, tls=lambda: trusted)
    target = Target(("localhost", listening.server.port, True), "localhost", "/b")
    body = b"x" * 500_000
    reply = await engines.request(target, target.head("POST") + b"content-length: 500000\r\n\r\n", body, 1 << 20)
    assert reply.body == b"POST /b " + body
    engines.close()


async def test_client_tells_a_stranger_from_a_server_that_is_away(tmp_path: Path, listening: Listening) -> None:
    stranger = make_authority(tmp_path, "stranger")
    for context in (client_context(stranger.cert), client_context(None)):
        engines = EnginePool(connect_seconds=5, idle_seconds=3, silence_seconds=5, tls=lambda context=context: context)
        target = Target(("127.0.0.1", listening.server.port, True), "127.0.0.1", "/")
        with pytest.raises(ExchangeFailedError, match="certificate verify failed") as caught:
            await engines.request(target, target.head("GET") + b"\r\n", b"")
        assert caught.value.reason == "tls"
        assert engines.num_busy == 0


def _missing(pair: Pair, other: Pair) -> None:
    pair.cert.unlink()


def _no_pem(pair: Pair, other: Pair) -> None:
    pair.cert.write_text("SECRET nonsense")


def _other_key(pair: Pair, other: Pair) -> None:
    pair.key.write_bytes(other.key.read_bytes())


def _open_key(pair: Pair, other: Pair) -> None:
    pair.key.chmod(0o644)


def _encrypted(pair: Pair, other: Pair) -> None:
    command = ("openssl", "ec", "-in", str(pair.key), "-aes128", "-passout", "pass:word", "-out", str(other.key))
    subprocess.run(command, check=True, capture_output=True)
    pair.key.write_bytes(other.key.read_bytes())


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (_missing, r"cannot be read \(No such file"),
        (_no_pem, "no certificate and key in PEM"),
        (_other_key, "doesn't belong to the certificate"),
        (_open_key, r"readable by others \(mode 644\); run chmod 600"),
        (_encrypted, "is encrypted"),
    ],
)
def test_files_that_cannot_be_used_are_told_in_one_sentence(
    tmp_path: Path, authority: Pair, pair: Pair, spoil: Callable[[Pair, Pair], None], sentence: str
) -> None:
    spoil(pair, make_server(tmp_path, "other", authority))
    with pytest.raises(TlsFileError, match=sentence) as caught:
        server_context(pair.cert, pair.key)
    assert "SECRET" not in str(caught.value)


def test_key_that_a_group_may_read_is_taken(pair: Pair) -> None:
    pair.key.chmod(0o640)
    assert server_context(pair.cert, pair.key)


@pytest.mark.parametrize("content", ["", "nonsense"])
def test_authorities_that_are_none_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "ca.pem").write_text(content)
    with pytest.raises(TlsFileError, match="holds no certificate"):
        client_context(tmp_path / "ca.pem")
