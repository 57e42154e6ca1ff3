"""Brings the database to the sources' state and registers the run directory's secrets with the control plane."""

from deploy.local.commands import run_logged
from deploy.local.console import Console
from deploy.local.environment import Options
from deploy.local.stamps import digest_of, is_current, write_stamp
from deploy.local.virtualenvs import child_environment

REGISTERED = ("admin-token", "admin-login", "api-key", "agent-token", "router-token")


def migrate(options: Options, variables: dict[str, str], console: Console, *, is_serving: bool) -> None:
    """Skipped only while a control plane serves that was started after the same migrations and secrets."""
    layout = options.layout
    inputs = [layout.root / "controlplane", *(layout.run / name for name in REGISTERED)]
    digest = digest_of(inputs, variables["BACKHAUL_DATABASE_URL"])
    stamp = layout.stamps / "database"
    if is_serving and is_current(stamp, digest):
        return
    with console.step("database", "migrating, and registering tokens"):
        for arguments in (("migrate", "--no-input"), ("bootstrap", "--run-dir", str(layout.run))):
            run_logged(
                [layout.main_python, "manage.py", *arguments],
                layout.log("setup-database"),
                what=f"manage.py {arguments[0]}",
                directory=layout.root,
                environment={**child_environment(), **variables},
            )
    write_stamp(stamp, digest)
