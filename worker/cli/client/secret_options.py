"""Secrets that are named by an option: in a variable or in a file, never in an argument, which every process list shows."""

from __future__ import annotations

import os
from pathlib import Path

import click


def secret_of(variable: str | None, file: Path | None) -> str | None:
    """Returns what the variable or the file holds, None where neither is named. Raises UsageError without any content."""
    if variable is not None and file is not None:
        raise click.UsageError("either a variable or a file")
    if variable is not None:
        if variable not in os.environ:
            raise click.UsageError(f"the variable {variable} is not set")
        return os.environ[variable]
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as exc:
        raise click.UsageError(f"{file}: {type(exc).__name__}") from None
