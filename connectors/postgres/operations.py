"""Whether the publication still lets through every operation that it has let through: what is taken out of it is lost
without a word, from the server and from every other check."""

from __future__ import annotations

import logging
from typing import Final

from cdcworker.connectors.postgres.config import Settings
from cdcworker.connectors.postgres.connection import AdminConnection
from cdcworker.connectors.postgres.errors import PUBLICATION_NARROWED
from cdcworker.connectors.postgres.session import Session
from cdcworker.connectors.postgres.standby import END_OF_LOG
from cdcworker.connectors.postgres.wire import parse_lsn
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

LOOK_S: Final = 4.0
"""How often: twice, and what was found stored, within ten seconds."""
NAMES: Final = {"c": "insert", "u": "update", "d": "delete", "t": "truncate"}

_LOOK: Final = (
    f"select pubinsert, pubupdate, pubdelete, pubtruncate, {END_OF_LOG} from pg_publication where pubname = %s"
)


def let_through(connection: AdminConnection, publication: str) -> tuple[str, int] | None:
    """Letters of the operations, and where the server's log ended then; None: no such publication."""
    row = connection.execute(_LOOK, (publication,)).fetchone()
    if row is None:
        return None
    return "".join(letter for letter, is_in in zip(NAMES, row, strict=False) if is_in), parse_lsn(row[4])


class Operations:
    """Looks now and then. A gap is stored before it is told; when it has ended all rows are read again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._halts = settings.raw["position.lost.policy"] == "halt"
        self._looked_at = float("-inf")
        self._whole_at: int | None = None
        """Where the log ended when the publication was found whole again: the gap lies before."""
        self._found: CdcError | None = None
        self._is_stored = False

    def look(self, session: Session, now: float) -> bool:
        """Whether all tables have been forgotten, to be read again. Raises what was found, once it is stored and the
        configuration does not say to go on."""
        if self._found is not None and self._is_stored and self._halts:
            raise self._found
        if now - self._looked_at < LOOK_S:
            return False
        self._looked_at = now
        assert session.snapshot
        progress, loader = session.snapshot.progress, session.snapshot.loader
        found = let_through(session.catalog, self._settings.publication)
        if found is None:
            # The stream says so at the next change.
            return False
        present, end = found
        missing = set(progress.published) - set(present) - self._settings.skipped
        if missing:
            self._tell(sorted(missing, key=list(NAMES).index), again=progress.gap)
            if not progress.gap:
                progress.gap = True
                loader.moves += 1
            return False
        self._found = None
        if not progress.gap:
            progress.published = present
            return False
        self._whole_at = self._whole_at or end
        # Changes that are still to come lie before the gap: rows that they make must not outlive the truncate.
        if session.position.safe_lsn < self._whole_at:
            return False
        log.warning("publication is whole again, all rows are read again publication=%s", self._settings.publication)
        progress.published, progress.gap, self._whole_at = present, False, None
        loader.forget_gaps({})
        return True

    def stored(self, position: JsonObject) -> None:
        """What the position says is known to whoever comes next."""
        self._is_stored = bool((position.get("snapshot") or {}).get("gap"))

    def _tell(self, missing: list[str], *, again: bool) -> None:
        self._whole_at = None
        self._is_stored = self._is_stored or again
        if self._found is None:
            names = ", ".join(NAMES[letter] for letter in missing)
            where = {"publication": self._settings.publication, "operations": names}
            self._found = CdcError(PUBLICATION_NARROWED, f"the publication leaves out {names} by now", where=where)
            log.warning("changes are lost error=%s", self._found)
