"""``manage.py bootstrap --run-dir .run``"""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.accounts.bootstrap import bootstrap


class Command(BaseCommand):
    help = "Makes the tokens, the API key and the admin login in a run directory valid; safe to repeat."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--run-dir", type=Path, required=True, help="Directory of the secret files, e.g. .run")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            for line in bootstrap(options["run_dir"]):
                self.stdout.write(line)
        except (OSError, ValueError) as error:
            raise CommandError(str(error)) from None
