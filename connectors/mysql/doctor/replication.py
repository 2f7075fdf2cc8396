"""The server among others: whether it is a replica and how late it is, who else reads its log, and what may be seen of that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cdcworker.connectors.checks import CheckResult, DoctorCheck, Repair, ok
from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.doctor.log import listed
from cdcworker.connectors.mysql.server.connection import translate
from cdcworker.connectors.mysql.server.examined_server import ExaminedServer
from cdcworker.connectors.mysql.server.grants import SEES_REPLICATION

LATE_S: Final = 60.0
_SEES: Final = (SEES_REPLICATION, "SLAVE MONITOR", "REPLICATION SLAVE ADMIN", "SUPER")
NOT_A_REPLICA: Final = "not a replica"


def _sources(examined: ExaminedServer) -> list[dict[str, Any]] | None:
    """Returns what the server replicates; None: the user may not see it."""
    import pymysql

    try:
        return examined.named(examined.facts.replica_status)
    except pymysql.Error as exc:
        error = translate(exc)
        if error.code != e.PERMISSION:
            raise error from exc
        return None


def _was_replica(examined: ExaminedServer) -> bool:
    """Returns whether a server that does not show what it replicates has ever done it."""
    return bool(examined.facts["gtid_slave_pos"])


def _updates(examined: ExaminedServer) -> Iterator[CheckResult]:
    facts, sources = examined.logging_facts(), _sources(examined)
    measured = f"log_slave_updates = {'ON' if facts.logs_replicated else 'OFF'}"
    is_replica = bool(sources) or (sources is None and _was_replica(examined))
    if not is_replica or facts.logs_replicated:
        yield ok(measured if is_replica else NOT_A_REPLICA)
        return
    name = "log_slave_updates" if facts.is_mariadb else "log_replica_updates"
    text = "changes that the server replicates are not in its own log"
    fix = Repair(steps=f"Set {name} in the server's configuration, and restart it; or read from its primary.")
    yield CheckResult("error", measured, text, fix=fix)


def _lag(examined: ExaminedServer) -> Iterator[CheckResult]:
    sources = _sources(examined)
    if sources is None:
        if not _was_replica(examined):
            yield ok(NOT_A_REPLICA)
            return
        fix = Repair((f"GRANT {SEES_REPLICATION} ON *.* TO {examined.user()}",))
        text = f"the server has been a replica, and how late it is may not be seen without {SEES_REPLICATION}"
        yield CheckResult("note", f"no {SEES_REPLICATION}", text, fix=fix)
        return
    if not sources:
        yield ok(NOT_A_REPLICA)
    for status in sources:
        yield _lag_of(status)


def _lag_of(status: Mapping[str, Any]) -> CheckResult:
    late = status.get("Seconds_Behind_Source", status.get("Seconds_Behind_Master"))
    stopped = [
        name
        for name in ("IO", "SQL")
        if str(status.get(f"Replica_{name}_Running", status.get(f"Slave_{name}_Running"))) == "No"
    ]
    if stopped:
        text = f"the server is a replica whose {' and '.join(stopped)} thread has stopped: changes of its primary do not arrive"
        return CheckResult(
            "error", "stopped", text, fix=Repair(("START REPLICA",), "SHOW REPLICA STATUS tells why it has stopped.")
        )
    if late is None:
        return CheckResult("warning", "unknown", "the server is a replica that has no connection to its primary")
    if float(late) > LATE_S:
        text = f"the server is a replica that is {late} s behind its primary, and so is everything that reads it"
        return CheckResult("warning", f"{late} s behind", text)
    return ok(f"{late} s behind its primary")


def _readers(examined: ExaminedServer) -> Iterator[CheckResult]:
    import pymysql

    own, facts = examined.settings.server_id, examined.logging_facts()
    try:
        readers = examined.named(facts.readers_statement)
    except pymysql.Error as exc:
        error = translate(exc)
        if error.code != e.PERMISSION:
            raise error from exc
        yield CheckResult("unknown", "", "only who administers replication may see who reads the log", error.code)
        return
    ids = sorted(str(reader["Server_Id"] if "Server_Id" in reader else reader["Server_id"]) for reader in readers)
    # A worker tells no port of its own, and no UUID.
    others = [one for one in readers if str(own) == _id(one) and (int(one.get("Port") or 0) or _uuid(one))]
    if others:
        text = f"database.server.id {own} is that of a replica: the server ends one of the two whenever the other one comes"
        yield CheckResult("error", f"{own} is taken", text, e.SERVER_ID_IN_USE)
    else:
        yield ok(f"{len(ids)} readers" + (f": {listed(ids)}" if ids else ""))


def _id(reader: Mapping[str, Any]) -> str:
    return str(reader.get("Server_Id", reader.get("Server_id")))


def _uuid(reader: Mapping[str, Any]) -> object:
    return reader.get("Replica_UUID", reader.get("Slave_UUID"))


def _seen(examined: ExaminedServer) -> Iterator[CheckResult]:
    facts = examined.facts
    is_one = len([host for host in examined.settings.login.hosts.split(",") if host.strip()]) < 2
    if not facts.is_mariadb or is_one or not examined.grants().lacks(*_SEES):
        yield ok("seen" if not is_one else "one server")
        return
    fix = Repair((f"GRANT {SEES_REPLICATION} ON *.* TO {examined.user()}",))
    text = f"without {SEES_REPLICATION} a task halts on a replica that comes late, instead of waiting for it"
    yield CheckResult("note", f"no {SEES_REPLICATION}", text, fix=fix)


CHECKS: Final = (
    DoctorCheck("replica.updates", "A replica logs what it replicates only if it is told to.", _updates),
    DoctorCheck("replica.lag", "Nothing that reads a replica is nearer to the primary than it.", _lag, validates=False),
    DoctorCheck("replica.readers", "Of two readers with one id the server ends the first.", _readers, validates=False),
    DoctorCheck("rights.replicas", "After a failover the new server may have yet to come along.", _seen, validates=False),
)  # fmt: skip
