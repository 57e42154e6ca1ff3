from django.apps import AppConfig


class PlacementConfig(AppConfig):
    name = "controlplane.placement"
    label = "placement"
