"""Traces of the control plane itself, only where an operator names an OTLP endpoint."""

import logging

from django.conf import settings

logger = logging.getLogger(__name__)

_is_started = False


def start_telemetry() -> None:
    """Builds the provider of this process and instruments Django and celery; safe to call again.

    Call it after any fork: the exporter's thread doesn't survive one. Without ``BACKHAUL_OTLP_ENDPOINT`` nothing is
    imported or patched, so the default costs nothing.
    """
    global _is_started
    if _is_started or not settings.OTLP_ENDPOINT:
        return
    _is_started = True
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.instrumentation.django import DjangoInstrumentor
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "backhaul-controlplane"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.OTLP_ENDPOINT)))
    trace.set_tracer_provider(provider)
    DjangoInstrumentor().instrument(excluded_urls="healthz,readyz,metrics,v1/traces")
    CeleryInstrumentor().instrument()
    logger.info("event=telemetry_started endpoint=%s", settings.OTLP_ENDPOINT)
