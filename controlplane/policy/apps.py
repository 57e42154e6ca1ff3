from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class PolicyConfig(AppConfig):
    name = "controlplane.policy"
    label = "policy"

    def ready(self) -> None:
        post_migrate.connect(make_first_revision, sender=self)


def make_first_revision(**_: Any) -> None:
    """A migrated database always has a policy in force."""
    from controlplane.policy.actions import ensure_first_revision

    ensure_first_revision()
