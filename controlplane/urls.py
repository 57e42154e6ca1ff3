"""The HTTP doors of the control plane; every app lists its own under ``/api/v1/``."""

from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularAPIView

from controlplane import errors, health, metrics

API_APPS = ("accounts", "fleet", "policy", "placement", "transfers", "tracing")

urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", metrics.metrics),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    *(path("api/v1/", include(f"controlplane.{app}.urls")) for app in API_APPS),
    path("", include("controlplane.accounts.login_urls")),
    path("", include("controlplane.tracing.receiver_urls")),
    path("", include("controlplane.dashboard.urls")),
]

handler400 = errors.bad_request
handler403 = errors.permission_denied
handler404 = errors.not_found
handler500 = errors.server_error
