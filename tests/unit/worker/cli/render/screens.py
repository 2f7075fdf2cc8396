"""Terminal screens of commands: the text that a terminal of a given size shows, and a picture of it."""

from __future__ import annotations

import io
import os
from html import escape
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.segment import Segment

PICTURES = os.environ.get("CDC_PICTURES", "")
"""A folder: screens are drawn into it too, to be looked at."""
GOLDEN = Path(__file__).with_name("screens")
CELL_W, CELL_H = 9, 18
COLOURS = {"red": "#ff6b6b", "green": "#7bd88f", "yellow": "#fce566", "cyan": "#5ad4e6", "magenta": "#c792ea"}


def lines(shown: RenderableType, width: int) -> list[list[Segment]]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard", highlight=False)
    return [list(line) for line in console.render_lines(shown, pad=False)]


def text(rows: list[list[Segment]]) -> str:
    return "\n".join("".join(part.text for part in row).rstrip() for row in rows) + "\n"


def draw(rows: list[list[Segment]], width: int, height: int, name: str) -> Path:
    """Each cell has its place, so that what is misaligned is seen to be."""
    path = Path(PICTURES, f"{name}.svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = f'width="{width * CELL_W}" height="{max(height, len(rows)) * CELL_H}"'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" {frame}><rect {frame} fill="#1e1e1e"/>']
    for number, row in enumerate(rows):
        at = 0
        for part in row:
            style = part.style
            colour = COLOURS.get(style.color.name, "#e0e0e0") if style and style.color else "#e0e0e0"
            weight = "bold" if style and style.bold else "normal"
            opacity = "0.6" if style and style.dim else "1"
            for char in part.text:
                if char.strip():
                    place = f'x="{at * CELL_W}" y="{number * CELL_H + 14}" font-size="15"'
                    look = f'font-family="DejaVu Sans Mono" font-weight="{weight}" fill="{colour}" opacity="{opacity}"'
                    out.append(f"<text {place} {look}>{escape(char)}</text>")
                at += cell_len(char)
    path.write_text("\n".join([*out, "</svg>"]), encoding="utf-8")
    return path


def check(shown: RenderableType, width: int, height: int, name: str) -> str:
    """Nothing is wider or higher than the terminal, and the screen is the one that somebody has looked at."""
    rows = lines(shown, width)
    if PICTURES:
        draw(rows, width, height, name)
    found, golden = text(rows), GOLDEN / f"{name}.txt"
    assert len(rows) <= height, f"{len(rows)} lines of {height}:\n{found}"
    assert max(cell_len(line) for line in found.splitlines()) <= width
    if os.environ.get("CDC_WRITE_SCREENS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(found, encoding="utf-8")
    assert found == golden.read_text(encoding="utf-8"), f"look at it, then repeat with CDC_WRITE_SCREENS=1:\n{found}"
    return found
