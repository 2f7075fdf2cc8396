"""Text that does not fit a terminal goes on below itself, and nothing of it is lost."""

from __future__ import annotations

import pytest
from cdcworker.worker.cli.render.output import table
from cdcworker.worker.cli.render.text_columns import folded, padded
from rich.cells import cell_len


@pytest.mark.parametrize(
    "text", ["plain words that go on and on", "nothingtobreakitatbutitislong" * 3, "名前 " * 30, ""]
)
@pytest.mark.parametrize("width", [10, 24, 80])
@pytest.mark.parametrize("indent", [0, 4, 40])
def test_no_line_is_wider_and_all_of_it_is_there(text, width, indent):
    found = folded(text, width, indent)
    assert max(map(cell_len, found)) <= width
    assert "".join("".join(found).split()) == "".join(text.split())
    assert folded(text, None, indent) == [text]


def test_wide_characters_do_not_move_what_stands_behind_them():
    lines = table(("NAME", "N"), [("名前", "1"), ("abcd", "2")]).splitlines()
    assert [cell_len(line[: line.rindex(end)]) for line, end in zip(lines, "N12", strict=True)] == [6, 6, 6]
    assert padded("名", 4) == "名  "
