"""Which stages of which batches are under way, for whoever supervises the task."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

STAGE_S_MAX: Final = 600.0
"""How long one stage of a batch may take, in a lake one table of it: a statement may wait for somebody's lock on a table."""
READING: Final = "the read of a batch"
BUILDING: Final = "the build of a batch"
APPLYING: Final = "the write of a batch"


class StageProgress:
    """Reports the stages in the order in which they began: one that hangs comes first, and is alone in the end."""

    def __init__(self, beat: Callable[[str, float], None]) -> None:
        """`beat` takes what the task does and how many seconds that may take."""
        self._beat = beat
        self._stages: list[str] = []
        self._step = ""
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Returns whether any stage is under way."""
        return bool(self._stages)

    @contextlib.contextmanager
    def one(self, stage: str) -> Iterator[None]:
        """Reports the stage while the context lasts."""
        with self._lock:
            self._stages.append(stage)
            self._report()
        try:
            yield
        finally:
            with self._lock:
                self._stages.remove(stage)
                self._step = "" if stage == APPLYING else self._step
                self._report()

    def step(self, doing: str) -> None:
        """Takes what the writer does at the moment, which is reported in place of the name of its stage."""
        with self._lock:
            if APPLYING in self._stages:
                self._step = doing
                self._report()
            else:
                self._beat(doing, STAGE_S_MAX)

    def _report(self) -> None:
        names = [self._step or stage if stage == APPLYING else stage for stage in self._stages]
        self._beat(", ".join(names) or "the end of a batch", STAGE_S_MAX if names else 0.0)
