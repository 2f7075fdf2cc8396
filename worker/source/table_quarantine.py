"""Tables that a source cannot hand on: the error that names one drops the session, the next one leaves it out."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from cdcworker.connectors.api.source import HoldsTables, SourceTask
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.logs.redaction import clean, clean_all

log = logging.getLogger(__name__)

TIMES_MAX: Final = 5
"""How often one table may be left out by one process. More often means that leaving it out does not help."""


class QuarantinedTables:
    """Remembers, between the sessions of one task, which tables are to be left out. A source that can do so has the ability
    HoldsTables."""

    def __init__(self) -> None:
        self._errors: dict[str, CdcError] = {}
        self._times: Counter[str] = Counter()
        self._source: HoldsTables | None = None

    def tell(self, task: SourceTask) -> None:
        """Tells the source which tables to leave out; called before it is opened."""
        self._source = task if isinstance(task, HoldsTables) else None
        if self._source is not None and self._errors:
            self._source.hold(dict(self._errors))

    def take(self, error: CdcError) -> bool:
        """Returns whether another session, without the table that the error names, is worth a try."""
        table = str(error.where.get("table", ""))
        if not table or self._source is None or not self._source.holds(error) or self._times[table] >= TIMES_MAX:
            return False
        self._times[table] += 1
        # It becomes part of the stored position, which lies in Kafka, and of reports.
        self._errors[table] = cleaned(error)
        log.warning("the session is dropped to go on without a table table=%s error=%s", table, error)
        return True

    def stored(self) -> None:
        """Called once what the task was told is part of its committed position."""
        self._errors.clear()


def cleaned(error: CdcError) -> CdcError:
    """Returns the error without what was resolved for this task, in whose place it holds the references."""
    return CdcError(error.code, clean(error.message), where=clean_all(error.where), hint=clean(error.hint))
