"""The output of commands: one JSON envelope, text without control characters, and the exit codes."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import click
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.cli.render.text_columns import padded

EXIT_RUNTIME, EXIT_VALIDATION, EXIT_ENVIRONMENT = 1, 2, 3
EXIT_OF_KIND = {"config": EXIT_VALIDATION, "transient": EXIT_ENVIRONMENT, "environment": EXIT_ENVIRONMENT}
EXIT_OF_STATUS = {
    **dict.fromkeys((400, 412, 413, 415, 422), EXIT_VALIDATION),
    **dict.fromkeys((401, 403, 408, 429, 502, 503, 504), EXIT_ENVIRONMENT),
}
"""Exit codes by HTTP status. Any other refusal is a failure at run time: the object is missing or in another state."""
USAGE = declare("cli.usage", "config", "The command line is not valid", "--help after a command shows its form.")
FILE_FAILED = declare(
    "cli.file_failed",
    "environment",
    "A file cannot be read or written",
    "Check its path, its rights and the space that is left.",
)

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
STATES = {
    "RUNNING": "green", "alive": "green", "healthy": "green", "ok": "green", "FAILED": "red", "failed": "red",
    "gone": "red", "error": "red", "PAUSED": "yellow", "UNASSIGNED": "yellow", "degraded": "yellow", "warning": "yellow",
    "draining": "yellow", "STOPPED": "yellow", "unknown": "magenta", "leader": "cyan",
}  # fmt: skip


@dataclass(frozen=True)
class TextTable:
    """A table with text before and after it."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    before: str = ""
    after: str = ""
    of: str = "row"
    """The name of a row for the summary: `3 connectors`."""


@dataclass(frozen=True)
class FoldedText:
    """A text with the one line that summarizes it, where its first line would not."""

    summary: str
    text: str | TextTable


Shown = str | TextTable | FoldedText


def summary_of(shown: Shown) -> str:
    """Returns the one line of the envelope that says what the command did or found."""
    if isinstance(shown, FoldedText):
        return shown.summary
    if isinstance(shown, str):
        return shown.partition("\n")[0]
    parts = (shown.before.partition("\n")[0] or counted(len(shown.rows), shown.of), shown.after.partition("\n")[0])
    return "; ".join(part for part in parts if part)


def counted(count: int, what: str) -> str:
    """Returns `1 task`, `2 tasks`."""
    return f"{count} {what}{'s' * (count != 1)}"


class CliError(click.ClickException):
    """An error that ends the command: printed as text or as the envelope, with the exit code of its kind."""

    def __init__(self, command: str, error: Mapping[str, Any], exit_code: int, *, as_json: bool) -> None:
        super().__init__(str(error["message"]))
        self.command = command
        self.error = dict(error)
        self.exit_code = exit_code  # type: ignore[misc]
        self.as_json = as_json

    def show(self, file: IO[Any] | None = None) -> None:
        if self.as_json:
            click.echo(envelope(self.command, None, self.error))
            return
        code = f"[{self.error['code']}] " if self.error.get("code") else ""
        click.echo(f"Error: {code}{clean(self.message)}", file=file, err=True)
        if self.error.get("suggestion"):
            click.echo(f"  {clean(str(self.error['suggestion']))}", file=file, err=True)


def of_error(error: CdcError, command: str, *, as_json: bool) -> CliError:
    """Returns a CdcError in the form of the REST API: the place in `where`, the hint in `suggestion`."""
    out: dict[str, Any] = {"code": error.code, "message": error.message, "suggestion": error.hint or None}
    if error.where:
        out["where"] = error.where
    if error.fix:
        out["fix"] = error.fix
    return CliError(command, out, EXIT_OF_KIND.get(error.kind, EXIT_RUNTIME), as_json=as_json)


def of_usage(problem: click.ClickException, command: str) -> CliError:
    error = {"code": USAGE, "message": problem.format_message(), "suggestion": "--help shows the form"}
    return CliError(command, error, problem.exit_code, as_json=True)


def envelope(
    command: str, result: Any, error: Mapping[str, Any] | None = None, *, ok: bool | None = None, summary: str = ""
) -> str:
    """Returns the JSON envelope. `ok` is false without an error if the command ran and found problems."""
    if error is not None:
        summary = str(error["message"]).partition("\n")[0]
    fine = error is None if ok is None else ok
    out = {"command": command, "ok": fine, "summary": summary, "result": result, "error": error}
    text = json.dumps(out, ensure_ascii=False, indent=2)
    return _CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def show(content: Shown) -> None:
    """Prints the content. On a terminal a table is fitted to the width and coloured; elsewhere the output is plain
    text."""
    if isinstance(content, FoldedText):
        content = content.text
    if isinstance(content, str):
        if content:
            click.echo(clean(content))
        return
    if not coloured():
        click.echo(clean(plain(content)))
        return
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(*content.head, box=None, pad_edge=False, header_style="bold")
    for row in content.rows:
        grid.add_row(*(Text(clean(cell), style=STATES.get(cell, "")) for cell in row))
    console = Console()
    for part in (content.before and Text(clean(content.before)), grid, content.after and Text(clean(content.after))):
        if part:
            console.print(part)


def plain(content: TextTable) -> str:
    lines = [content.before, table(content.head, content.rows), content.after]
    return "\n".join(line for line in lines if line)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[cell.replace("\n", " ") for cell in row] for row in rows]
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(head, *cells, strict=True)]
    lines = ("  ".join(map(padded, row, widths)) for row in (head, *cells))
    return "\n".join(line.rstrip() for line in lines)


def coloured() -> bool:
    """Returns whether escape sequences may be written: on a terminal, unless NO_COLOR is set or the terminal is dumb."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def clean(text: str) -> str:
    """Returns text from others without characters that control a terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def pretty(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2)
