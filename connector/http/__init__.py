"""HTTP/1.1 on asyncio's protocols with httptools: the server and the client of the data path.

Knows nothing of what is served. A request is handed over whole; a reply is relayed piece by piece, by callbacks from
one connection to the other, without a task, a timer or a parse per event.
"""

from connector.http.client import EnginePool
from connector.http.errors import ExchangeFailedError, ReplyTooLargeError, SourceBrokenError
from connector.http.headers import Headers, Pairs, field
from connector.http.limits import Limits
from connector.http.messages import Request, Response
from connector.http.relay import relay
from connector.http.reply import Reply, gather
from connector.http.requests import Service
from connector.http.server import HttpServer
from connector.http.target import Target
from connector.http.tls import CurrentContext, TlsFileError, client_context, server_context, steady_context

__all__ = (
    "CurrentContext",
    "EnginePool",
    "ExchangeFailedError",
    "Headers",
    "HttpServer",
    "Limits",
    "Pairs",
    "Reply",
    "ReplyTooLargeError",
    "Request",
    "Response",
    "Service",
    "SourceBrokenError",
    "Target",
    "TlsFileError",
    "client_context",
    "field",
    "gather",
    "relay",
    "server_context",
    "steady_context",
)
