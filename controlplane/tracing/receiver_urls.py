"""Where OTLP exporters send spans: outside ``/api/v1/``, at the path that they append by default."""

from django.urls import URLPattern, URLResolver, path

from controlplane.tracing.receiver import ReceiverView

urlpatterns: list[URLPattern | URLResolver] = [path("v1/traces", ReceiverView.as_view(), name="otlp-traces")]
