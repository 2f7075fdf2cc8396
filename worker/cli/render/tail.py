"""A row change as lines of text: its operation, and its columns before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import click
from cdcworker.worker.cli.render.output import clean, coloured
from cdcworker.worker.cli.render.text_columns import folded, padded, width_of_terminal

COLOURS: Final = {"create": "green", "read": "green", "update": "yellow", "delete": "red", "truncate": "red"}
VALUE_MAX: Final = 200
"""A longer value is cut on the screen; --json shows it whole."""
NAME_MAX: Final = 30
VALUE_AT: Final = 6
"""Columns that a line needs besides the name, before its value."""
HEAD_AT: Final = 14
BELOW: Final = "\n"
"""Separates a name that is too long from its value, which stands below it in the column of the other values."""
Line = tuple[str, str]
"""A colour and a text."""


def print_change(change: Mapping[str, Any], *, all_columns: bool = False) -> None:
    has_colours = coloured()
    for colour, line in lines(change, all_columns=all_columns, width=width_of_terminal()):
        click.echo(click.style(line, fg=colour) if has_colours and colour else line)


def lines(change: Mapping[str, Any], *, all_columns: bool = False, width: int | None = None) -> Iterator[Line]:
    """Yields the lines of a change; what does not fit continues below its value."""
    indent = VALUE_AT + _width(change["after"] or change["before"] or {})
    for number, (colour, text) in enumerate(_lines(change, all_columns)):
        name, below, value = text.partition(BELOW)
        if below and width is not None:
            yield from ((colour, line) for line in folded(name, width, VALUE_AT))
            text = " " * min(indent, width // 2) + value
        yield from ((colour, line) for line in folded(text.replace(BELOW, "  "), width, indent if number else HEAD_AT))


def _lines(change: Mapping[str, Any], all_columns: bool) -> Iterator[Line]:
    yield COLOURS.get(change["op"], ""), _head(change)
    before, after = change["before"], change["after"]
    if change.get("too_large"):
        yield "", f"    the row is too large to be shown ({change['too_large']:,} characters)"
    elif change["op"] == "update" and before is not None:
        yield from _differences(change, before, after or {}, all_columns)
    elif before is not None or after is not None:
        row, sign = (after, "+") if after is not None else (before, "-")
        if change["op"] == "update":
            yield "", "    before is not known: the table's replica identity does not send it"
            sign = " "
        yield from _row(change, row, sign)


def _head(change: Mapping[str, Any]) -> str:
    moment = change.get("source", {}).get("ts_ms") or change["written_ms"]
    when = datetime.fromtimestamp(moment / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    place = f"{change['topic']}/{change['partition']}@{change['offset']}" if "topic" in change else ""
    parts = (when, f"{change['op'].upper():<9} {change['table']}", _key(change["key"]), place)
    return clean("  ".join(part for part in parts if part))


def _key(key: Any) -> str:
    if isinstance(key, dict):
        return " ".join(f"{name}={_text(value)}" for name, value in key.items())
    return "" if key is None else _text(key)


def _differences(change: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], whole: bool) -> Any:
    changed, unknown = set(change["changed"] or ()), set(change.get("unknown", ()))
    width = _width(after)
    for name, value in after.items():
        if name in changed:
            yield "yellow", f"  ~ {_named(name, width)}{_text(before.get(name))} → {_text(value)}"
        elif whole:
            yield "", f"    {_named(name, width)}{'(not sent: unchanged)' if name in unknown else _text(value)}"
    if not changed and not whole:
        yield "", "    no column differs"


def _row(change: Mapping[str, Any], row: Mapping[str, Any], sign: str) -> Iterator[Line]:
    unknown = set(change.get("unknown", ()))
    width = _width(row)
    for name, value in row.items():
        shown = "(not sent: unchanged)" if name in unknown else _text(value)
        yield "", f"  {sign} {_named(name, width)}{shown}"


def _named(name: str, width: int) -> str:
    from rich.cells import cell_len

    text = clean(name).replace("\n", "\\n")
    return text + BELOW if cell_len(text) > width else padded(text, width) + "  "


def _width(row: Mapping[str, Any]) -> int:
    from rich.cells import cell_len

    return min(NAME_MAX, max((cell_len(clean(name)) for name in row), default=0))


def _text(value: Any) -> str:
    from cdcworker.worker.diagnostics.change_view import text_of

    text = clean(text_of(value)).replace("\n", "\\n")
    return text if len(text) <= VALUE_MAX else f"{text[:VALUE_MAX]}… ({len(text):,} characters)"
