"""In which folders the file connectors may read and write: the operator says it, connectors' configs do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cdcworker.connectors.config import parse_list

FILE_ROOTS: Final = "file.connector.paths"
FILE_ROOT: Final = "/tmp/cdcworker"
"""The default: a place for trials. Whoever may create a connector must not read any file of the worker's user."""


def file_roots(providers: Mapping[str, str]) -> tuple[str, ...]:
    """From the properties that a task is given."""
    return tuple(parse_list(providers.get(FILE_ROOTS, FILE_ROOT)))
