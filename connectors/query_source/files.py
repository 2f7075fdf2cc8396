"""Databases that are one file: which file may be opened."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cdcworker.connectors.api.plugin_errors import Misconfigured, Unavailable
from cdcworker.connectors.config.allowed_paths import allowed_path
from cdcworker.connectors.query_source.address import FileAddress
from cdcworker.connectors.query_source.database import QueryRequest


def path_of(request: QueryRequest) -> Path:
    """Returns the path of a request's file, which lies in one of the folders that the worker opens to connectors. CdcError."""
    assert isinstance(request.address, FileAddress)
    return allowed_path(request.address.path, request.file_roots, "connection.url")


def require_file(path: Path) -> None:
    """Unavailable where there is no file now, Misconfigured for a link and for a file with a second name."""
    try:
        found = os.lstat(path)
    except OSError as error:
        raise Unavailable(f"the file cannot be read ({type(error).__name__})", key="connection.url") from None
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise Misconfigured("is no regular file, a link, or has a second name", key="connection.url")
