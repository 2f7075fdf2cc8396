"""Configs of connectors in files, in either form of Kafka Connect, from a path or from stdin."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click


def read_object(source: Path) -> dict[str, Any]:
    """Returns the JSON object in a file; `-` is stdin. UsageError for any other content."""
    try:
        given = json.loads(sys.stdin.read() if str(source) == "-" else source.read_text(encoding="utf-8"))
    except OSError as exc:
        raise click.UsageError(f"{source}: {exc.strerror}") from None
    except (ValueError, RecursionError) as exc:
        raise click.UsageError(f"{source} is no JSON: {exc}") from None
    if not isinstance(given, dict):
        raise click.UsageError(f"{source}: expected a JSON object")
    return given


def read_config(source: Path | None, settings: tuple[str, ...] = ()) -> tuple[str | None, dict[str, Any]]:
    """Returns (name, config) of a file in either form, with `key=value` settings merged into it."""
    given = read_object(source) if source is not None else {}
    name, config = (given.get("name"), given["config"]) if isinstance(given.get("config"), dict) else (None, given)
    config = dict(config)
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator:
            raise click.UsageError(f"{setting}: expected key=value")
        config[key] = value
    return name or config.get("name"), config


def read_named(source: Path, name: str | None, settings: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Returns (name, config) as `read_config` does. UsageError without a name."""
    named, config = read_config(source, settings)
    chosen = name or named
    if not chosen:
        raise click.UsageError(f"{source}: the file names no connector; --name does")
    return str(chosen), {**config, "name": str(chosen)}
