"""The paths that connectors may touch: those in the folders that the worker opens to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cdcworker.schemas.errors import CdcError, declare

NOT_ALLOWED: Final = declare(
    "file.path_not_allowed",
    "config",
    "The file lies outside of the folders that this worker opens to connectors",
    "Put the file into one of the folders of the worker property file.connector.paths, or add its folder there.",
)


def allowed_path(text: str, roots: Sequence[str], key: str = "file") -> Path:
    """The path that `key` of a config names, with its folder resolved. A symbolic link as its last part is refused when the
    file is opened."""
    path = Path(text)
    folder = Path(os.path.realpath(path.parent))
    for root in roots:
        if folder.is_relative_to(os.path.realpath(root)) and path.name not in ("", ".", ".."):
            return folder / path.name
    said = (
        f"{key} lies in none of the folders that this worker opens to connectors: {', '.join(roots) or 'there is none'}"
    )
    raise CdcError(NOT_ALLOWED, said, where={"key": key, "file": text})
