"""Writes a distribution with one plugin that works: its module, the harness that it is tested with, a test, and how to go on."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal

from cdcworker.schemas.errors import CdcError, declare

NOT_WRITTEN: Final = declare(
    "plugin.not_written",
    "config",
    "The new plugin cannot be written",
    "Name it with small letters, digits and hyphens, and choose a folder that does not have it yet.",
)

Kind = Literal["source", "sink", "transform"]
KINDS: Final[tuple[Kind, ...]] = ("source", "sink", "transform")
GROUPS: Final = {
    "source": "cdcworker.connectors",
    "sink": "cdcworker.connectors",
    "transform": "cdcworker.connectors.transforms",
}
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def write_plugin(name: str, kind: Kind, parent: Path) -> Path:
    """Writes the distribution `name` into a new folder of that name, and returns it. CdcError where that cannot be."""
    if not _NAME.fullmatch(name) or len(name) > 50 or name == "cdcworker":
        raise CdcError(NOT_WRITTEN, "a name of small letters, digits and hyphens is expected, such as acme-orders")
    folder, module = parent / name, name.replace("-", "_")
    try:
        (folder / module).mkdir(parents=True)
        (folder / "tests").mkdir()
        for target, source in _files(module, kind).items():
            text = files("cdcworker.worker.conformance").joinpath("templates", source).read_text(encoding="utf-8")
            (folder / target).write_text(_filled(text, name, module, kind), encoding="utf-8")
        (folder / module / "py.typed").touch()
    except FileExistsError:
        raise CdcError(NOT_WRITTEN, f"the folder {folder} is there already") from None
    except OSError as error:
        raise CdcError(NOT_WRITTEN, f"{folder}: {error.strerror}") from None
    return folder


def _files(module: str, kind: Kind) -> dict[str, str]:
    return {
        "pyproject.toml": "pyproject.toml.txt",
        "README.md": "readme.md.txt",
        f"{module}/__init__.py": f"{kind}.py.txt",
        f"{module}/harness.py": f"{kind}_harness.py.txt",
        "tests/test_plugin.py": "test_plugin.py.txt",
    }


def _filled(text: str, name: str, module: str, kind: Kind) -> str:
    for place, value in (("@NAME@", name), ("@MODULE@", module), ("@KIND@", kind), ("@GROUP@", GROUPS[kind])):
        text = text.replace(place, value)
    return text
