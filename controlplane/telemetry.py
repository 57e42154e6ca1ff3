"""Traces of the control plane itself, only where an operator names an OTLP endpoint."""

import logging
from functools import cache

from django.conf import settings

logger = logging.getLogger(__name__)


@cache
def start_telemetry() -> None:
    """Builds the provider of this process and instruments Django and celery; once however often it is called.

    Call it after any fork: the exporter's thread doesn't survive one. Without ``BACKHAUL_OTLP_ENDPOINT`` nothing is
    imported or patched, so the default costs nothing.
    """
    if not settings.OTLP_ENDPOINT:
        return
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
    CeleryInstrumentor().instrument()  # type: ignore[no-untyped-call]
    logger.info("event=telemetry_started endpoint=%s", settings.OTLP_ENDPOINT)
