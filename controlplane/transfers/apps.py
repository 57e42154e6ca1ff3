from django.apps import AppConfig


class TransfersConfig(AppConfig):
    name = "controlplane.transfers"
    label = "transfers"
