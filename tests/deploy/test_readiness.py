"""Each kind of probe against a server that is there, isn't, or answers wrongly."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from deploy.local.readiness import engines_ready_probe, http_probe
from tests.deploy.conftest import free_port


@contextmanager
def server(status: int, body: str = "") -> Iterator[str]:
    """Answers every GET alike, once the bearer token is right or none was sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers.get("Authorization") in (None, "Bearer good")
            self.send_response(status if allowed else 401)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *arguments: object) -> None:
            """Keeps the test's output to itself."""

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = Thread(target=http.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


def test_healthy_part_has_nothing_to_complain_of() -> None:
    with server(200) as url:
        assert http_probe(url)() == ""


def test_unready_part_is_told_by_its_status() -> None:
    with server(503) as url:
        assert http_probe(url)() == "HTTP 503"
        assert http_probe(url, accepts_any_status=True)() == ""


def test_part_that_does_not_listen_refuses() -> None:
    assert http_probe(f"http://127.0.0.1:{free_port()}")() == "connection refused"


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    with server(200) as url:
        assert http_probe(url)() == ""


def engines(**states: str) -> str:
    return json.dumps({"results": [{"name": name, "state": state} for name, state in states.items()]})


def test_fleet_is_ready_when_every_engine_is() -> None:
    with server(200, engines(p="ready", d="ready", other="down")) as url:
        assert engines_ready_probe(url, "good", ["p", "d"])() == ""


def test_missing_and_unready_engines_are_named() -> None:
    with server(200, engines(p="ready", d="pending")) as url:
        complaint = engines_ready_probe(url, "good", ["p", "d", "e"])()
    assert complaint == "not ready in the control plane: d, e"


def test_refused_token_is_a_complaint_not_a_crash() -> None:
    with server(200, engines(p="ready")) as url:
        assert "401" in engines_ready_probe(url, "bad", ["p"])()
    with server(200, "no JSON") as url:
        assert "can't be listed" in engines_ready_probe(url, "good", ["p"])()
