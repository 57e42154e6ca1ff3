"""What a request's head says, and what is wrong with it beyond its syntax, which the parser has checked."""

from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from connector.http.headers import Pairs
from connector.http.limits import Limits
from connector.http.messages import Request, Response

if TYPE_CHECKING:
    from collections.abc import Awaitable


class Service(Protocol):
    """What is served. ``admit`` and ``refuse`` are called while a request arrives and must not wait for anything."""

    def admit(self, request: Request) -> Response | None:
        """Called when the head is there: an answer that needs no body, or none if the request may go on."""

    def refuse(self, status: int, message: str, request: Request | None = None) -> Response:
        """The server's own refusal in the service's shape; ends the connection."""

    def answer(self, request: Request) -> "Awaitable[Response | None]":
        """Called with the whole request; none says that the reply was relayed. Cancelled when the client leaves."""


def path_of(url: bytes) -> str:
    """The path of a request target in origin or absolute form, percent-decoded, without its query."""
    text = url.decode("latin-1")
    if text[:1] != "/" and "://" in text:
        text = urlsplit(text).path or "/"
    path = text.partition("?")[0]
    return unquote(path, errors="surrogateescape") if "%" in path else path


def has_body(pairs: Pairs) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 ")) for name, value in pairs
    )


def fault_in(request: Request, limits: Limits, service: Service) -> Response | None:
    """The refusal of a head that two servers could read in two ways, or that asks for more than there is."""
    headers = request.headers
    if request.version not in ("1.1", "1.0"):
        return service.refuse(505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.", request)
    num_hosts = headers.num(b"host")
    if num_hosts > 1 or (num_hosts == 0 and request.version == "1.1"):
        return service.refuse(400, "The request must have one Host field.", request)
    coding = headers.raw(b"transfer-encoding")
    if coding is not None:
        if request.version == "1.0":
            return service.refuse(400, "HTTP/1.0 has no Transfer-Encoding.", request)
        if coding.strip().lower() != b"chunked" or headers.num(b"transfer-encoding") > 1:
            return service.refuse(501, "The only Transfer-Encoding taken is 'chunked'.", request)
        return None
    length = headers.raw(b"content-length")
    if length is not None and int(length) > limits.max_body_bytes:
        return service.refuse(413, f"The request body is larger than {limits.max_body_bytes} bytes.", request)
    return None
