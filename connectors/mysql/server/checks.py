"""The table of everything that is looked at on a source's server: what is measured, why it matters, and the statement that mends it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from typing import Final, Literal

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.checks import CheckResult, CheckSkipped, DoctorCheck, Repair, hint_of, ok
from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.config.settings import MySqlSettings
from cdcworker.connectors.mysql.server.connection import translate
from cdcworker.connectors.mysql.server.examined_server import ExaminedServer
from cdcworker.connectors.mysql.server.grants import MONITORS
from cdcworker.schemas.errors import CODES, CdcError

MYSQL_MIN: Final = (8, 0)
MARIADB_MIN: Final = (10, 5)
EXPIRY_S_MIN: Final = 86_400
"""An outage that is noticed the next day should find the log still there."""
EXPIRY_S_ADVISED: Final = 7 * 86_400
_KEYS: Final = {
    e.AUTHENTICATION: "database.password",
    e.WEAK_LOGIN: "database.ssl.mode",
    e.TLS: "database.ssl.mode",
    e.OTHER_PRODUCT: "connector.class",
    e.PERMISSION: "database.user",
    e.NO_REPLICATION_RIGHT: "database.user",
    e.SERVER_ID_IN_USE: "database.server.id",
    e.TABLE_MISSING: "table.include.list",
}
_CONFIGURATION: Final = "Put it into the server's configuration too, and let its clients connect anew."


def check(settings: MySqlSettings, checks: Iterable[DoctorCheck]) -> Iterator[CheckFinding]:
    """Yields findings as they are made; a server that cannot be logged in to has one. Changes nothing."""
    if importlib.util.find_spec("pymysql") is None:
        yield CheckFinding(
            "connector.class",
            "error",
            e.DRIVER_MISSING,
            "the worker needs the extra mysql",
            CODES[e.DRIVER_MISSING].hint,
        )
        return
    examined = ExaminedServer(settings)
    try:
        for item in checks:
            if item.validates:
                yield from _findings(item, examined)
    finally:
        examined.close()


def _findings(item: DoctorCheck, examined: ExaminedServer) -> Iterator[CheckFinding]:
    import pymysql

    try:
        for result in item.run(examined):
            if result.status in ("error", "warning", "note"):
                yield CheckFinding(key_of(result), result.status, result.code, result.message, hint_of(result))
    except CheckSkipped:
        return
    except (CdcError, pymysql.Error) as exc:
        error = translate(exc)
        yield CheckFinding(_KEYS.get(error.code, "database.hostname"), "error", error.code, error.message, error.hint)


def key_of(result: CheckResult) -> str:
    """Returns the config key that a result is about, where the check does not say it."""
    return result.key or _KEYS.get(result.code, "database.hostname")


def _login(examined: ExaminedServer) -> Iterable[CheckResult]:
    """Everything else is skipped where this raises."""
    facts = examined.log_in()
    yield ok(f"{facts.product} {facts['version']}")


def _version(examined: ExaminedServer) -> Iterable[CheckResult]:
    facts = examined.facts
    least = MARIADB_MIN if facts.is_mariadb else MYSQL_MIN
    measured = f"{facts.product} {facts['version']}"
    if facts.version >= least:
        yield ok(measured)
    else:
        text = f"the server is {measured}; {'.'.join(map(str, least))} is the oldest that is read"
        yield CheckResult("error", measured, text, e.VERSION)


def _product(examined: ExaminedServer) -> Iterable[CheckResult]:
    facts, wanted = examined.facts, examined.settings.product
    if wanted and wanted != facts.connector:
        text = f"the server is {facts.product}, and connector.class is one of {wanted}"
        fix = Repair(steps=f"Set connector.class to {facts.connector}.")
        yield CheckResult("error", facts.product, text, e.OTHER_PRODUCT, fix=fix)
    else:
        yield ok(facts.product)


def _log(examined: ExaminedServer) -> Iterable[CheckResult]:
    measured = f"log_bin = {examined.facts['log_bin']}"
    if examined.has_log:
        yield ok(measured)
    else:
        steps = "Set log_bin and a server_id in the server's configuration, and restart it."
        yield CheckResult("error", measured, "log_bin is off", e.LOG_OFF, fix=Repair(steps=steps))


def _format(examined: ExaminedServer) -> Iterable[CheckResult]:
    yield _setting(examined, "binlog_format", "ROW", "error", e.LOG_FORMAT, "statements are logged in place of rows")


def _row_image(examined: ExaminedServer) -> Iterable[CheckResult]:
    is_minimal, settings = examined.facts["binlog_row_image"].upper() == "MINIMAL", examined.settings
    if is_minimal and settings.snapshot_mode == "no_data" and not settings.completes_rows:
        # A default that an INSERT does not name is in no image: only the table tells it.
        text = "an INSERT logs only the columns that it names, and snapshot.mode says that no row is read"
        yield _setting(examined, "binlog_row_image", "FULL", "error", e.ROW_IMAGE, text)
    elif is_minimal:
        text = (
            "an INSERT logs only the columns that it names, so that each row is read again, and an update only those that it changes, so"
            " that values are missing in records, where they are marked as not sent"
        )
        yield _setting(examined, "binlog_row_image", "FULL", "warning", e.ROW_IMAGE, text)
    else:
        text = "values that a statement does not change may be missing in records, where they are marked as not sent"
        yield _setting(examined, "binlog_row_image", "FULL", "warning", e.ROW_IMAGE, text)


def _row_metadata(examined: ExaminedServer) -> Iterable[CheckResult]:
    text = "names and types of columns come from the catalog, so that changes of tables need care"
    yield _setting(examined, "binlog_row_metadata", "FULL", "note", e.ROW_METADATA, text)


def _json(examined: ExaminedServer) -> Iterable[CheckResult]:
    facts = examined.logging_facts()
    measured = f"binlog_row_value_options = {facts['binlog_row_value_options'] or 'none'}"
    if "PARTIAL_JSON" in facts["binlog_row_value_options"].upper():
        fix = Repair((facts.set_global("binlog_row_value_options", "''"),), _CONFIGURATION)
        text = "differences of JSON values are logged in place of the values, and tables with them are held back"
        yield CheckResult("error", measured, text, e.PARTIAL_JSON, fix=fix)
    else:
        yield ok(measured)


def _setting(
    examined: ExaminedServer, name: str, wanted: str, status: Literal["error", "warning", "note"], code: str, text: str
) -> CheckResult:
    """Judges one variable of the log."""
    facts = examined.logging_facts()
    measured = f"{name} = {facts[name]}"
    if facts[name].upper() == wanted:
        return ok(measured)
    fix = Repair((facts.set_global(name, f"'{wanted}'"),), _CONFIGURATION)
    return CheckResult(status, measured, f"{measured}: {text}", code, fix=fix)


def _expiry(examined: ExaminedServer) -> Iterable[CheckResult]:
    facts = examined.logging_facts()
    seconds, most = facts.expiry_s, facts.log_bytes_max
    measured = f"{seconds} s" if seconds else "never by age"
    if most:
        text = f"the server removes its oldest log beyond {most} bytes, whether or not it has been read"
        yield CheckResult("warning", f"max_binlog_total_size = {most}", text, e.LOG_EXPIRY, fix=Repair(
            (facts.set_global("max_binlog_total_size", "0"),), _CONFIGURATION))  # fmt: skip
    if 0 < seconds < EXPIRY_S_MIN:
        text = f"the server removes log after {seconds} s: a connector that is down for longer misses changes"
        fix = Repair((facts.set_global("binlog_expire_logs_seconds", str(EXPIRY_S_ADVISED)),), _CONFIGURATION)
        yield CheckResult("warning", measured, text, e.LOG_EXPIRY, fix=fix)
    elif not most:
        yield ok(measured)


def _server_id(examined: ExaminedServer) -> Iterable[CheckResult]:
    facts, own = examined.logging_facts(), examined.settings.server_id
    measured = f"server_id = {facts.server_id}"
    if facts.server_id == own:
        text = f"database.server.id is {own}, which is the id of the server itself"
        yield CheckResult("error", measured, text, e.SERVER_ID_IN_USE)
    elif not facts.server_id:
        steps = "Set server_id in the server's configuration."
        fix = Repair((facts.set_global("server_id", "1"),), steps)
        yield CheckResult(
            "error", measured, "the server has no server_id, and sends its log to nobody", e.DUMP_REFUSED, fix=fix
        )
    else:
        yield ok(measured)


def _gtids(examined: ExaminedServer) -> Iterable[CheckResult]:
    facts = examined.logging_facts()
    measured = "MariaDB's domains" if facts.is_mariadb else f"gtid_mode = {facts['gtid_mode']}"
    if facts.has_gtids:
        yield ok(measured)
    else:
        text = "the position is a place in this server's files: after a failover reading cannot go on"
        modes = ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON")
        statements = (
            facts.set_global("enforce_gtid_consistency", "ON"),
            *(facts.set_global("gtid_mode", m) for m in modes),
        )
        yield CheckResult("warning", measured, text, e.GTIDS_OFF, fix=Repair(statements, _CONFIGURATION))


def _rights(examined: ExaminedServer) -> Iterable[CheckResult]:
    grants, facts = examined.grants(), examined.facts
    for right, others in (("REPLICATION SLAVE", ("REPLICATION REPLICA",)), ("REPLICATION CLIENT", MONITORS)):
        if grants.lacks(right, *others):
            fix = Repair((f"GRANT {right} ON *.* TO {examined.user()}",))
            text = f"the user lacks {right}, without which {facts.product} does not send its log or say where it ends"
            yield CheckResult("error", f"no {right}", text, e.NO_REPLICATION_RIGHT, fix=fix)
        else:
            yield ok(right)


def _tables(examined: ExaminedServer) -> Iterable[CheckResult]:
    found = examined.captured()
    if found:
        yield ok(f"{len(found)} tables")
    else:
        text = "no table that the user may see is chosen by the include and exclude lists"
        yield CheckResult("error", "0 tables", text, e.TABLE_MISSING)


CHECKS: Final = (
    DoctorCheck("server.login", "Nothing can be read from a server that cannot be logged in to.", _login),
    DoctorCheck("server.version", "Older servers log less than is needed.", _version),
    DoctorCheck("server.product", "The records say of which product the source is.", _product),
    DoctorCheck("log.written", "Changes are read from the binary log.", _log),
    DoctorCheck("log.format", "Only rows tell what a statement has changed.", _format),
    DoctorCheck("log.row_image", "What is not logged cannot be handed on.", _row_image),
    DoctorCheck("log.row_metadata", "With FULL each event says by itself what its table looks like.", _row_metadata),
    DoctorCheck("log.json", "Records hold whole JSON values.", _json),
    DoctorCheck("log.expiry", "The server removes log by age, whether or not it has been read.", _expiry),
    DoctorCheck("log.gtids", "GTIDs name transactions alike on all servers of a group.", _gtids),
    DoctorCheck("server.id", "Of two readers with one id the server ends the first.", _server_id),
    DoctorCheck("rights.replication", "The log is sent to users with the right to replicate only.", _rights),
    DoctorCheck("tables.captured", "A config that chooses no table would do nothing without saying so.", _tables),
)
