"""Work counted in calls: the same on a machine that is busy."""

from __future__ import annotations

import sys
from collections.abc import Callable


def calls(act: Callable[[], object]) -> int:
    """Function calls that it takes, those of the interpreter included: the same on a machine that is busy."""
    count = 0

    def note(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count
