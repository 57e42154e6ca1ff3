from django.apps import AppConfig


class TracingConfig(AppConfig):
    name = "controlplane.tracing"
    label = "tracing"
