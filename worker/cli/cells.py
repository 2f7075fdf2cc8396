"""Text in columns of a terminal, where some characters take two."""

from __future__ import annotations

import shutil
import sys


def width_of_terminal() -> int | None:
    """None: what is written goes elsewhere, whole lines as they are."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def padded(text: str, width: int) -> str:
    from rich.cells import cell_len

    return text + " " * (width - cell_len(text))


def folded(text: str, width: int | None, indent: int) -> list[str]:
    """Lines that fit, those behind the first one indented; between words where that can be."""
    from rich.cells import cell_len, chop_cells

    lines: list[str] = []
    while width is not None and cell_len(text) > width:
        fits = chop_cells(text, width)[0]
        at = fits.rfind(" ", indent + 1)
        cut = at if at > max(indent, width // 2) else len(fits)
        lines.append(text[:cut].rstrip())
        text = " " * min(indent, width // 2) + text[cut:].lstrip()
    return [*lines, text]
