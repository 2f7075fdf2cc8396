"""Text in columns of a terminal, where some characters take two columns."""

from __future__ import annotations

import shutil
import sys


def width_of_terminal() -> int | None:
    """Returns the width; None when the output is no terminal, so that lines stay whole."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def padded(text: str, width: int) -> str:
    from rich.cells import cell_len

    return text + " " * (width - cell_len(text))


def folded(text: str, width: int | None, indent: int) -> list[str]:
    """Returns lines that fit into the width, all but the first indented, broken between words where possible."""
    from rich.cells import cell_len, chop_cells

    lines: list[str] = []
    while width is not None and cell_len(text) > width:
        fits = chop_cells(text, width)[0]
        at = fits.rfind(" ", indent + 1)
        cut = at if at > max(indent, width // 2) else len(fits)
        lines.append(text[:cut].rstrip())
        text = " " * min(indent, width // 2) + text[cut:].lstrip()
    return [*lines, text]
