"""Whether the publication still lets through every operation that it has let through: what is taken out of it is lost
without a word, from the server and from every other check."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from cdcworker.connectors.postgres.config import Settings
from cdcworker.connectors.postgres.connection import AdminConnection
from cdcworker.connectors.postgres.errors import PUBLICATION, PUBLICATION_NARROWED
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    from cdcworker.connectors.postgres.session import Session

log = logging.getLogger(__name__)

LOOK_S: Final = 4.0
"""How often: twice, and what was found stored, within ten seconds."""
NAMES: Final = {"c": "insert", "u": "update", "d": "delete", "t": "truncate"}

# Which tables it has is in other rows.
_LOOK: Final = (
    "select pubinsert, pubupdate, pubdelete, pubtruncate, concat_ws(' ', xmin, oid, md5((to_jsonb(p) - 'oid')::text))"
    " from pg_publication p where pubname = %s"
)
_ALTERED: Final = (
    "publication was altered publication=%s: if it has left out an operation meanwhile, such changes are lost, and the rows"
    " have to be read again"
)
_THERE_AND_BACK: Final = (
    "publication was altered and is as before, so that it may have left out operations meanwhile publication=%s"
)


class Seen(NamedTuple):
    """A publication: letters of its operations; the transaction that altered its row last, that row's number and what
    it says."""

    present: str
    altered: str


def let_through(connection: AdminConnection, publication: str) -> Seen | None:
    """None: no such publication."""
    row = connection.execute(_LOOK, (publication,)).fetchone()
    if row is None:
        return None
    return Seen("".join(letter for letter, is_in in zip(NAMES, row, strict=False) if is_in), row[4])


def altered_by_us(session: Session, before: Seen | None) -> None:
    """At a start: what we have done to the publication ourselves, which was as it is stored, is no gap."""
    stored = session.position.snapshot
    if stored and before and str(stored.get("altered")).split()[0] == before.altered.split()[0]:
        after = let_through(session.catalog, session.settings.publication)
        if after and after != before:
            stored["altered"] = after.altered
            session.position_changed = True


def is_unexplained(stored: str, altered: str) -> bool:
    """Whether the row was altered and says the same, or is another one: what it has said between cannot be known. A
    difference is explained by a single alteration."""
    transaction, *row = stored.split()
    after, *now = altered.split()
    return transaction != after and (row[:1] != now[:1] or row == now)


class Operations:
    """Looks now and then. A gap is stored before it is told; when it has ended the rows are read again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._halts = settings.raw["position.lost.policy"] == "halt"
        self._looked_at = float("-inf")
        self.whole = ""
        """The alteration by which the publication is whole again, where all tables are to be forgotten and read again:
        `made_good` says that they are."""
        self._seen: Seen | None = None
        self._found: CdcError | None = None
        self._is_stored = False

    def look(self, session: Session, now: float) -> bool:
        """Whether it was just seen that the publication is `whole` again. Raises what was found, once it is stored and
        the configuration does not say to go on."""
        if self._found is not None and self._is_stored and self._halts:
            raise self._found
        if now - self._looked_at < LOOK_S:
            return False
        self._looked_at = now
        assert session.snapshot
        progress, loader = session.snapshot.progress, session.snapshot.loader
        self._seen = seen = let_through(session.catalog, self._settings.publication)
        if seen is None:
            # Since PostgreSQL 18 the stream goes on without it, and without a word.
            where = {"publication": self._settings.publication}
            raise CdcError(PUBLICATION, "the publication does not exist any more", where=where)
        missing = set(progress.published) - set(seen.present) - self._settings.skipped
        if missing:
            self._tell(sorted(missing, key=list(NAMES).index), again=progress.gap)
            if not progress.gap:
                progress.gap = True
                loader.moves += 1
            return False
        self._found = None
        if not progress.gap and not self._was_away(session, seen):
            self._keep(session, seen)
            return False
        self.whole = seen.altered
        return True

    def _was_away(self, session: Session, seen: Seen) -> bool:
        """It is whole, and may have left out operations since the last look."""
        assert session.snapshot
        progress = session.snapshot.progress
        if not progress.altered or progress.altered.split()[0] == seen.altered.split()[0]:
            return False
        if not is_unexplained(progress.altered, seen.altered):
            log.warning(_ALTERED, self._settings.publication)
            return False
        log.warning(_THERE_AND_BACK, self._settings.publication)
        progress.gap = True
        session.snapshot.loader.moves += 1
        return True

    def made_good(self, session: Session) -> None:
        """The tables have been forgotten."""
        assert session.snapshot
        assert self._seen
        log.warning("publication is whole again publication=%s", self._settings.publication)
        session.snapshot.progress.gap, self.whole = False, ""
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
        self.whole = ""
        self._is_stored = self._is_stored or again
        if self._found is None:
            names = ", ".join(NAMES[letter] for letter in missing)
            where = {"publication": self._settings.publication, "operations": names}
            self._found = CdcError(PUBLICATION_NARROWED, f"the publication leaves out {names} by now", where=where)
            log.warning("changes are lost error=%s", self._found)
