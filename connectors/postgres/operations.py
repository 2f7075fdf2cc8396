"""Whether the publication still lets through every operation that it has let through: what is taken out of it is lost
without a word, from the server and from every other check."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

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
    f"select pubinsert, pubupdate, pubdelete, pubtruncate, {END_OF_LOG}, xmin::text from pg_publication"
    " where pubname = %s"
)


_ALTERED: Final = (
    "publication was altered publication=%s: if it has left out an operation meanwhile, such changes are lost, and the rows"
    " have to be read again"
)


class Seen(NamedTuple):
    """A publication: letters of its operations, where the server's log ended then, and the transaction that altered it
    last (what tables it has is another row)."""

    present: str
    end: int
    altered: str


def let_through(connection: AdminConnection, publication: str) -> Seen | None:
    """None: no such publication."""
    row = connection.execute(_LOOK, (publication,)).fetchone()
    if row is None:
        return None
    present = "".join(letter for letter, is_in in zip(NAMES, row, strict=False) if is_in)
    return Seen(present, parse_lsn(row[4]), row[5])


class Operations:
    """Looks now and then. A gap is stored before it is told; when it has ended the rows are read again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._halts = settings.raw["position.lost.policy"] == "halt"
        self._looked_at = float("-inf")
        self._whole_at: int | None = None
        """Where the log ended when the publication was found whole again: the gap lies before."""
        self._seen: Seen | None = None
        self._found: CdcError | None = None
        self._is_stored = False

    def look(self, session: Session, now: float) -> bool:
        """Whether all tables are to be forgotten and read again now: `made_good` says that they are. Raises what was
        found, once it is stored and the configuration does not say to go on."""
        if self._found is not None and self._is_stored and self._halts:
            raise self._found
        if now - self._looked_at < LOOK_S:
            return False
        self._looked_at = now
        assert session.snapshot
        progress, loader = session.snapshot.progress, session.snapshot.loader
        self._seen = seen = let_through(session.catalog, self._settings.publication)
        if seen is None:
            # The stream says so at the next change.
            return False
        missing = set(progress.published) - set(seen.present) - self._settings.skipped
        if missing:
            self._tell(sorted(missing, key=list(NAMES).index), again=progress.gap)
            if not progress.gap:
                progress.gap = True
                loader.moves += 1
            return False
        self._found = None
        if not progress.gap:
            if progress.altered and progress.altered != seen.altered:
                log.warning(_ALTERED, self._settings.publication)
            self._keep(session, seen)
            return False
        self._whole_at = self._whole_at or seen.end
        # Changes that are still to come lie before the gap: rows that they make must not outlive the truncate.
        return session.position.safe_lsn >= self._whole_at

    def made_good(self, session: Session) -> None:
        """The tables have been forgotten."""
        assert session.snapshot
        assert self._seen
        log.warning("publication is whole again publication=%s", self._settings.publication)
        session.snapshot.progress.gap, self._whole_at = False, None
        self._keep(session, self._seen)

    def _keep(self, session: Session, seen: Seen) -> None:
        assert session.snapshot
        progress = session.snapshot.progress
        if (progress.published, progress.altered) != (seen.present, seen.altered):
            progress.published, progress.altered = seen.present, seen.altered
            session.snapshot.loader.moves += 1

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
