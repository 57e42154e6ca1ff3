"""The sockets of agents and routers."""

from django.urls import URLPattern, path

from controlplane.fleet.agent_consumer import AgentConsumer
from controlplane.fleet.router_consumer import RouterConsumer

websocket_urlpatterns: list[URLPattern] = [
    path("ws/agent/", AgentConsumer.as_asgi()),
    path("ws/router/", RouterConsumer.as_asgi()),
]
