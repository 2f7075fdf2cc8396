"""Tables that a source cannot hand on: the error that names one drops the session, the next one leaves it out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from cdcworker.connectors.api import SourceTask
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

TIMES_MAX: Final = 5
"""How often one table may be left out by one process. More often means that leaving it out does not help."""


class Troubles:
    """Between the sessions of one task. A source that can leave out tables has `holds` and `hold`."""

    def __init__(self) -> None:
        self._errors: dict[str, CdcError] = {}
        self._times: Counter[str] = Counter()
        self._holds: Callable[[CdcError], bool] | None = None

    def tell(self, task: SourceTask) -> None:
        """Before the task is opened."""
        source: Any = task
        self._holds = getattr(source, "holds", None)
        if self._errors:
            source.hold(dict(self._errors))

    def take(self, error: CdcError) -> bool:
        """Whether another session, without the table that the error names, is worth a try."""
        table = str(error.where.get("table", ""))
        if not table or self._holds is None or not self._holds(error) or self._times[table] >= TIMES_MAX:
            return False
        self._times[table] += 1
        self._errors[table] = error
        log.warning("the session is dropped to go on without a table table=%s error=%s", table, error)
        return True

    def stored(self) -> None:
        """What the task was told is part of its committed position."""
        self._errors.clear()
