"""Pieces of Markdown: text that shows as it stands in the code, headings, lists and tables whose rows stay short."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

ROW_CHARS_MAX: Final = 300
"""A longer row of a table cannot be read on a screen; what is longer becomes a section."""


def text(words: str) -> str:
    """Return `words` so that Markdown shows them as they are; what stands between backticks stays code."""
    pieces = " ".join(words.split()).split("`")
    return "`".join(piece if number % 2 else _plain(piece) for number, piece in enumerate(pieces))


def _plain(piece: str) -> str:
    return piece.replace("<", "&lt;").replace("*", r"\*")


def sentence(words: str) -> str:
    """Return `words` as `text` does, with a full stop at the end."""
    shown = text(words)
    return shown if not shown or shown[-1] in ".!?:" else f"{shown}."


def code(name: str) -> str:
    return f"`{name}`"


def codes(names: Iterable[str]) -> str:
    return ", ".join(map(code, names))


def bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; ValueError names a row that is longer than ROW_CHARS_MAX characters."""
    lines = [_row(head), "|" + " --- |" * len(head), *map(_row, rows)]
    long = [line for line in lines if len(line) > ROW_CHARS_MAX]
    if long:
        raise ValueError(f"this row is longer than {ROW_CHARS_MAX} characters: {long[0]}")
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def page(title: str, *parts: str) -> str:
    """Return a whole page that says in its first line that it is generated."""
    head = f"<!-- Made by `make reference` from the code. -->\n\n# {title}"
    return "\n\n".join(part for part in (head, *parts) if part) + "\n"
