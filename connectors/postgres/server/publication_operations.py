"""Whether the publication still lets through every operation that it has let through: what is taken out of it is lost
without a word, from the server and from every other check."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from cdcworker.connectors.capture.snapshot.chunk_scheduler import ChunkScheduler
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.errors import PUBLICATION, PUBLICATION_NARROWED
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError

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


class SeenPublication(NamedTuple):
    """A publication: letters of its operations; the transaction that altered its row last, that row's number and what
    it says."""

    present: str
    altered: str


def let_through(connection: AdminConnection, publication: str) -> SeenPublication | None:
    """Returns what the publication lets through; None: there is no such publication."""
    row = connection.execute(_LOOK, (publication,)).fetchone()
    if row is None:
        return None
    return SeenPublication("".join(letter for letter, is_in in zip(NAMES, row, strict=False) if is_in), row[4])


def store_own_alteration(
    connection: AdminConnection, publication: str, stored: JsonObject | None, before: SeenPublication | None
) -> bool:
    """Notes in the stored progress that this start has altered the publication, which was as it is stored, so that the
    alteration is no gap. Returns whether the stored progress was changed."""
    if stored and before and str(stored.get("altered")).split()[0] == before.altered.split()[0]:
        after = let_through(connection, publication)
        if after and after != before:
            stored["altered"] = after.altered
            return True
    return False


def is_unexplained(stored: str, altered: str) -> bool:
    """Returns whether the row was altered and says the same, or is another one: what it has said between cannot be
    known. A difference is explained by a single alteration."""
    transaction, *row = stored.split()
    after, *now = altered.split()
    return transaction != after and (row[:1] != now[:1] or row == now)


class PublicationOperations:
    """Looks now and then. A gap is stored before it is told; when it has ended the rows are read again."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._halts = settings.raw["position.lost.policy"] == "halt"
        self._looked_at = float("-inf")
        self.whole = ""
        """The alteration by which the publication is whole again, where all tables are to be forgotten and read again:
        `made_good` says that they are."""
        self._seen: SeenPublication | None = None
        self._found: CdcError | None = None
        self._is_stored = False

    def look(self, connection: AdminConnection, scheduler: ChunkScheduler, now: float) -> bool:
        """Looks at the publication, and returns whether it was just seen to be `whole` again. Raises what was found,
        once it is stored and the configuration does not say to go on."""
        if self._found is not None and self._is_stored and self._halts:
            raise self._found
        if now - self._looked_at < LOOK_S:
            return False
        self._looked_at = now
        progress = scheduler.progress
        self._seen = seen = let_through(connection, self._settings.publication)
        if seen is None:
            # Since PostgreSQL 18 the stream goes on without it, and without a word.
            where = {"publication": self._settings.publication}
            raise CdcError(PUBLICATION, "the publication does not exist any more", where=where)
        missing = set(progress.published) - set(seen.present) - self._settings.skipped
        if missing:
            self._tell(sorted(missing, key=list(NAMES).index), again=progress.gap)
            if not progress.gap:
                progress.gap = True
                scheduler.note_progress()
            return False
        self._found = None
        if not progress.gap and not self._was_away(scheduler, seen):
            self._keep(scheduler, seen)
            return False
        self.whole = seen.altered
        return True

    def _was_away(self, scheduler: ChunkScheduler, seen: SeenPublication) -> bool:
        """Returns whether the publication, which is whole, may have left out operations since the last look."""
        progress = scheduler.progress
        if not progress.altered or progress.altered.split()[0] == seen.altered.split()[0]:
            return False
        if not is_unexplained(progress.altered, seen.altered):
            log.warning(_ALTERED, self._settings.publication)
            return False
        log.warning(_THERE_AND_BACK, self._settings.publication)
        progress.gap = True
        scheduler.note_progress()
        return True

    def made_good(self, scheduler: ChunkScheduler) -> None:
        """Called once all tables have been forgotten, so that they are read again."""
        assert self._seen
        log.warning("publication is whole again publication=%s", self._settings.publication)
        scheduler.progress.gap, self.whole = False, ""
        self._keep(scheduler, self._seen)

    def _keep(self, scheduler: ChunkScheduler, seen: SeenPublication) -> None:
        progress = scheduler.progress
        if (progress.published, progress.altered) != (seen.present, seen.altered):
            progress.published, progress.altered = seen.present, seen.altered
            scheduler.note_progress()

    def stored(self, position: JsonObject) -> None:
        """Called once the position is committed, so that a successor knows what it says."""
        self._is_stored = bool((position.get("snapshot") or {}).get("gap"))

    def _tell(self, missing: list[str], *, again: bool) -> None:
        self.whole = ""
        self._is_stored = self._is_stored or again
        if self._found is None:
            names = ", ".join(NAMES[letter] for letter in missing)
            where = {"publication": self._settings.publication, "operations": names}
            self._found = CdcError(PUBLICATION_NARROWED, f"the publication leaves out {names} by now", where=where)
            log.warning("changes are lost error=%s", self._found)
