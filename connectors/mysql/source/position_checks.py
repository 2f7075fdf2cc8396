"""Whether the server still has what lies behind the stored position, and what is done where it has not.

GTIDs tell it on every server of one history, whichever of them is read now. On the server that was read before, the place in the file
is compared too: a log that was reset, or put back from a copy, may have the same GTIDs again with other transactions.
"""

from __future__ import annotations

import logging
from typing import Final

from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.gtid.executed import contains, parse_gtids
from cdcworker.connectors.mysql.gtid.mariadb import MariaDbPosition, gtids_of
from cdcworker.connectors.mysql.gtid.mysql import GtidSet
from cdcworker.connectors.mysql.server.facts import ServerFacts, read_facts
from cdcworker.connectors.mysql.server.log_events import made_at
from cdcworker.connectors.mysql.server.log_files import file_number, gtids_at, log_files
from cdcworker.connectors.mysql.server.steady_connection import SteadyConnection, translated
from cdcworker.connectors.mysql.source.position import StoredPosition
from cdcworker.connectors.mysql.transport.commands import FIRST_POSITION
from cdcworker.schemas.errors import CdcError, Where

log = logging.getLogger(__name__)

STARTED_OVER: Final = frozenset((e.LOG_PURGED, e.LOG_RESET))
"""Losses after which rows may be read again. A server of another history is no loss but a mistake."""


def is_resumable(
    settings: MySqlSettings, position: StoredPosition, catalog: SteadyConnection, facts: ServerFacts
) -> bool:
    """Checks the stored position against the server. Returns False when it is lost and the configuration says to start over;
    raises CdcError when it is lost and must not be given up."""
    try:
        check(settings, position, catalog, facts)
    except CdcError as exc:
        wanted = settings.raw["position.lost.policy"] == "resnapshot" or settings.snapshot_mode == "when_needed"
        if not wanted or exc.code not in STARTED_OVER or settings.snapshot_mode == "no_data":
            raise
        log.warning("position is lost, all rows are read again error=%s", exc)
        return False
    return True


def verify(settings: MySqlSettings, position: StoredPosition) -> None:
    """Raises CdcError for a position from which a task would halt. Called while no task of the connector runs."""
    with translated():
        catalog = SteadyConnection(settings)
        try:
            check(settings, position, catalog, read_facts(catalog.get()))
        finally:
            catalog.close()


def check(settings: MySqlSettings, position: StoredPosition, catalog: SteadyConnection, facts: ServerFacts) -> None:
    """Raises CdcError with the code of what is wrong."""
    where: Where = {"file": position.place.file, "position": position.place.position}
    if facts.is_mariadb is not position.is_mariadb:
        text = f"the position is one of {position.product}, and the server is {facts.product}"
        raise CdcError(e.OTHER_SERVER, text, where=where)
    is_same = position.server == facts.identity
    if not position.has_gtids and not is_same:
        text = "the position is a place in the files of a server without GTIDs, and this is another server"
        raise CdcError(e.OTHER_SERVER, text, where=where)
    if is_same and position.server and position.place.file:
        _check_files(settings, position, catalog, where)
    if position.has_gtids:
        lost = e.LOG_RESET if is_same and position.server else e.OTHER_HISTORY
        if isinstance(executed := position.executed(), MariaDbPosition):
            _check_mariadb(executed, catalog, lost, where)
        else:
            _check_mysql(executed, catalog, lost, where, facts)


def _check_files(settings: MySqlSettings, position: StoredPosition, catalog: SteadyConnection, where: Where) -> None:
    """The server is the one that was read before: its log is the same, or a part of it was purged."""
    files, place = log_files(catalog.get()), position.place
    size = files.get(place.file)
    if size is None:
        if file_number(place.file) > max(map(file_number, files), default=0):
            raise CdcError(e.LOG_RESET, "the server's log ends before the file of the stored position", where=where)
        if not position.has_gtids:
            raise CdcError(e.LOG_PURGED, "the server has removed the file of the stored position", where=where)
        return
    if size < place.position:
        text = f"the file of the stored position ends at {size}"
        raise CdcError(e.LOG_RESET, text, where=where)
    if place.made and made_at(settings, place.file) != place.made:
        raise CdcError(e.LOG_RESET, "the file of the stored position was begun at another time", where=where)
    if position.is_mariadb:
        found = gtids_at(catalog.get(), place.file, place.position)
        if found is not None and found != position.executed():
            text = "other transactions lie before the stored position in its file"
            raise CdcError(e.LOG_RESET, text, where=where)


def _check_mariadb(executed: MariaDbPosition, catalog: SteadyConnection, lost: str, where: Where) -> None:
    """Each domain's last transaction was written by some server: the log has it where that server's last number is no lower."""
    ((state,),) = catalog.ask("select @@global.gtid_binlog_state")
    last = {(one.domain, one.server): one.sequence for one in gtids_of(str(state or ""))}
    for gtid in executed.last.values():
        known = last.get((gtid.domain, gtid.server))
        if known is None or known < gtid.sequence:
            text = f"the server's log does not have transaction {gtid}"
            if known is not None and lost == e.OTHER_HISTORY and _replicates(catalog, "show all slaves status"):
                raise CdcError(e.REPLICA_BEHIND, text, where=where)
            raise CdcError(lost, text, where=where)
    first = next(iter(log_files(catalog.get())), None)
    floor = gtids_at(catalog.get(), first, FIRST_POSITION) if first else None
    if floor is not None and not contains(executed, floor):
        raise CdcError(e.LOG_PURGED, f"the server's log begins behind {floor}", where=where)


def _check_mysql(executed: GtidSet, catalog: SteadyConnection, lost: str, where: Where, facts: ServerFacts) -> None:
    ((has, purged),) = catalog.ask("select @@global.gtid_executed, @@global.gtid_purged")
    own = GtidSet.parse(str(has))
    if not own.contains(executed):
        text = "the server has not executed transactions that were read"
        is_of_group = not own.intervals.keys().isdisjoint(executed.intervals)
        if is_of_group and lost == e.OTHER_HISTORY and _replicates(catalog, facts.replica_status):
            raise CdcError(e.REPLICA_BEHIND, text, where=where)
        raise CdcError(lost, text, where=where)
    if not contains(executed, parse_gtids(str(purged), is_mariadb=False)):
        raise CdcError(e.LOG_PURGED, "the server has removed transactions that were not read", where=where)


def _replicates(catalog: SteadyConnection, statement: str) -> bool:
    """Returns whether the server is set up as a replica, as far as the user may see it."""
    try:
        return bool(catalog.ask(statement))
    except CdcError as exc:
        if exc.code != e.PERMISSION:
            raise
        return False
