"""The two hooks of PEP 517 that ``pip download`` calls."""

from pathlib import Path

PKG_INFO = Path("PKG-INFO")
"""pip calls the hooks in the unpacked source distribution, whose metadata lies there already."""


def get_requires_for_build_wheel(_config_settings: object = None) -> list[str]:
    return []


def prepare_metadata_for_build_wheel(metadata_directory: str, _config_settings: object = None) -> str:
    folder = Path(metadata_directory, "vllm.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text(PKG_INFO.read_text())
    return folder.name
