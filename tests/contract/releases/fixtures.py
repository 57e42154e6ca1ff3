"""What was read of each release, one small JSON file a release: written by ``make seams``, checked without network."""

import json
from pathlib import Path

from tests.contract.releases.seam import Value

FOLDER = Path(__file__).parent / "fixtures"


def path_of(version: str) -> Path:
    return FOLDER / f"vllm-{version}.json"


def load(version: str) -> dict[str, Value]:
    """Raises ``FileNotFoundError`` for a release that was never read."""
    seams: dict[str, Value] = json.loads(path_of(version).read_text())["seams"]
    return seams


def save(version: str, seams: dict[str, Value]) -> None:
    """One line a seam, so that a difference between releases reads well."""
    lines = [f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in seams.items()]
    text = f'{{\n  "vllm": {json.dumps(version)},\n  "seams": {{\n' + ",\n".join(lines) + "\n  }\n}\n"
    FOLDER.mkdir(exist_ok=True)
    path_of(version).write_text(text)
