"""The ASGI application: Django for HTTP, channels for the sockets of agents, routers and browsers."""

import os
from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application
from django.urls import re_path

from controlplane.telemetry import start_telemetry

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings.production")
start_telemetry()  # adds a middleware, so it comes before the handler that reads them
http_application = get_asgi_application()  # sets Django up: the imports below need it

import controlplane.urls  # noqa: E402, F401 - a door that can't be imported shows at start, not at the first request
from controlplane.dashboard.routing import websocket_urlpatterns as dashboard_patterns  # noqa: E402
from controlplane.fleet.routing import websocket_urlpatterns as fleet_patterns  # noqa: E402


async def refuse(scope: Any, receive: Any, send: Any) -> Any:
    """No such socket: closing before accepting makes the server answer 403."""
    await send({"type": "websocket.close"})


def browser_pattern(pattern: Any) -> Any:
    """A browser's socket: only from our own origin, with the session's user in its scope."""
    pattern.callback = AllowedHostsOriginValidator(AuthMiddlewareStack(pattern.callback))
    return pattern


application = ProtocolTypeRouter(
    {
        "http": http_application,
        "websocket": URLRouter(
            [*fleet_patterns, *(browser_pattern(pattern) for pattern in dashboard_patterns), re_path(r"", refuse)]
        ),
    }
)
