"""Is the server's log decoded, is there room for a slot, and how is ours?"""

from __future__ import annotations

from collections.abc import Iterator

from cdcworker.connectors.checks import CheckResult, DoctorCheck, Repair, ok
from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres.doctor import position_checks
from cdcworker.connectors.postgres.doctor.examined_server import APPLICATION_NAME, ExaminedServer, duration, size
from cdcworker.connectors.postgres.position import StoredPosition
from cdcworker.connectors.postgres.server import failover_slots, fixes
from cdcworker.connectors.postgres.server import slot as slots
from cdcworker.connectors.postgres.transport.connection import APPLICATION, conninfo
from cdcworker.connectors.postgres.transport.libpq_stream import ReplicationStream
from cdcworker.connectors.postgres.transport.server_functions import WRITTEN, is_standby
from cdcworker.schemas.errors import CdcError

MB = 1024 * 1024
SPILL_BYTES = 1 << 30
FORECAST_S_MIN = 86_400.0
RETAINED_BYTES = 10 << 30


def _wal_level(examined: ExaminedServer) -> Iterator[CheckResult]:
    level = examined.server["wal_level"]
    if level == "logical":
        yield ok(level)
        return
    fix = fixes.parameter(examined.flavour, fixes.LOGICAL, "logical", restart=True)
    yield CheckResult("error", level, f"wal_level is {level}", e.WAL_LEVEL, fix=fix)


def _free_slots(examined: ExaminedServer) -> Iterator[CheckResult]:
    used, most = examined.row(
        "select (select count(*) from pg_replication_slots), current_setting('max_replication_slots')::int"
    )
    yield from _free(examined, "replication slots", "max_replication_slots", used, most)


def _free_senders(examined: ExaminedServer) -> Iterator[CheckResult]:
    used, most = examined.row(
        "select (select count(*) from pg_stat_replication), current_setting('max_wal_senders')::int"
    )
    yield from _free(examined, "walsenders", "max_wal_senders", used, most)


def _free(examined: ExaminedServer, what: str, setting: str, used: int, most: int) -> Iterator[CheckResult]:
    measured, free, lacking = f"{used} of {most} in use", most - used, examined.lacking
    if free >= max(lacking, 1):
        yield ok(measured)
        return
    fix = fixes.parameter(examined.flavour, setting, str(most + max(10, lacking)), restart=True)
    if not lacking:
        text = f"all {most} {what} are in use; this connector has its slot"
        yield CheckResult("note", measured, text, e.NO_FREE_SLOT, fix=fix)
        return
    hint = f"Raise {setting}, or drop a slot that nobody reads."
    text = f"{free} of {most} {what} are free; {lacking} are needed" if free > 0 else f"all {most} {what} are in use"
    yield CheckResult("error", measured, text, e.NO_FREE_SLOT, hint=hint, fix=fix)


def _wal_limit(examined: ExaminedServer) -> Iterator[CheckResult]:
    limit = int(examined.server["max_slot_wal_keep_size"])
    if limit >= 0:
        yield ok(f"a slot may keep {size(limit * MB)}")
        return
    text = "nothing limits what a slot keeps: a connector that is stopped for long fills the server's disk"
    fix = fixes.parameter(examined.flavour, "max_slot_wal_keep_size", "51200", restart=False)
    hint = "With a limit the slot is lost instead, and the connector says so; choose what the disk can bear (in MB)."
    yield CheckResult("warning", "no limit", text, hint=hint, fix=fix)


def _idle_timeout(examined: ExaminedServer) -> Iterator[CheckResult]:
    found = examined.server.get("idle_replication_slot_timeout")
    if found is None:
        yield ok(f"not in PostgreSQL {examined.version // 10000}")
    elif int(found) == 0:
        yield ok("off")
    else:
        text = f"the slot is lost when the connector does not read it for {duration(int(found))}"
        fix = fixes.parameter(examined.flavour, "idle_replication_slot_timeout", "0", restart=False)
        yield CheckResult("warning", duration(int(found)), text, fix=fix)


def _spill(examined: ExaminedServer) -> Iterator[CheckResult]:
    memory = f"logical_decoding_work_mem {size(int(examined.server['logical_decoding_work_mem']) * 1024)}"
    rows = examined.rows(
        "select spill_txns, spill_bytes from pg_stat_replication_slots where slot_name = %s", examined.settings.slot
    )
    if not rows:
        yield ok(f"{memory}, nothing decoded yet")
        return
    times, spilt = rows[0]
    measured = f"{memory}, {times} transactions spilt {size(spilt)} to disk"
    if spilt < SPILL_BYTES:
        yield ok(measured)
        return
    fix = fixes.parameter(examined.flavour, "logical_decoding_work_mem", "262144", restart=False)
    yield CheckResult("note", measured, "large transactions go to the server's disk while they are decoded", fix=fix)


def _failover(examined: ExaminedServer) -> Iterator[CheckResult]:
    wanted = examined.settings.raw[failover_slots.KEY]
    if wanted and not failover_slots.is_possible(examined.connection):
        hint = "Failover slots need a primary of PostgreSQL 17; an ordinary slot is made."
        yield CheckResult("note", "", "slot.failover has no effect here", e.SERVER_VERSION, failover_slots.KEY, hint)
        return
    if (
        wanted is None
        and examined.slot
        and examined.slot.failover is False
        and failover_slots.is_possible(examined.connection)
    ):
        text = "the slot was made without failover, and does not follow when a standby takes over"
        command = failover_slots.alteration(examined.slot.name)
        hint = (
            "With slot.failover=true the next start alters it; false says that it is meant so. By hand, with the"
            f" connector stopped, on a connection with replication=database: {command}"
        )
        yield CheckResult("note", "made without", text, key=failover_slots.KEY, hint=hint)
        return
    yield ok("the slot follows to synchronised standbys" if _is_kept(examined) else "the slot does not follow")


def _is_kept(examined: ExaminedServer) -> bool:
    """Returns whether standbys keep the slot, once the connector has started."""
    wanted, found = examined.settings.raw[failover_slots.KEY], examined.slot
    if wanted is False or (wanted is None and found is not None):
        return found is not None and bool(found.failover)
    return failover_slots.is_possible(examined.connection)


def _standbys(examined: ExaminedServer) -> Iterator[CheckResult]:
    """A server with standbys and a slot that stays behind when one of them takes over."""
    names = [row[0] for row in examined.rows("select slot_name from pg_replication_slots where slot_type = 'physical'")]
    if not names or examined.version < failover_slots.VERSION or _is_kept(examined):
        yield ok(f"{len(names)} physical slots")
        return
    text = "there are standbys, and the slot does not follow when one of them takes over"
    hint = "slot.failover=true, with sync_replication_slots = on and hot_standby_feedback = on at the standby."
    yield CheckResult("note", f"{len(names)} physical slots", text, key="slot.failover", hint=hint)


def _state(examined: ExaminedServer) -> Iterator[CheckResult]:
    found = examined.slot
    if found is None:
        yield ok(f"{examined.settings.slot} does not exist yet; the connector makes it")
        return
    try:
        slots.check_kind(found, examined.settings.dbname)
    except CdcError as exc:
        yield CheckResult("error", found.plugin or found.kind, exc.message, exc.code, hint=exc.hint)
        return
    if found.wal_status == "lost":
        yield from _lost(examined)
        return
    if found.active_pid is None:
        yield ok(f"{found.name}, {found.wal_status}, nobody reads it")
        return
    rows = examined.rows(
        "select coalesce(application_name, ''), extract(epoch from now() - backend_start)::float8"
        " from pg_stat_activity where pid = %s", found.active_pid,
    )  # fmt: skip
    application, since = rows[0] if rows else ("", None)
    measured = f"{found.name}, {found.wal_status}, read by {application or f'backend {found.active_pid}'}"
    measured += f" for {duration(since)}" if since is not None else ""
    if application.startswith(APPLICATION):
        hint = "Fine if this connector is running; two connectors must not share a slot."
        yield CheckResult("note", measured, f"the slot is read by {application}", e.SLOT_IN_USE, hint=hint)
    else:
        yield CheckResult("error", measured, f"backend {found.active_pid} reads the slot", e.SLOT_IN_USE)


def _lost(examined: ExaminedServer) -> Iterator[CheckResult]:
    text, why = "the slot exists and has lost WAL that it needed", ""
    if examined.version >= 170000:
        why = examined.row(
            "select coalesce(invalidation_reason, '') from pg_replication_slots where slot_name = %s",
            examined.settings.slot,
        )[0]
    fix = Repair(
        (f"SELECT pg_drop_replication_slot({fixes.literal(examined.settings.slot)})",), "Then reset the offsets."
    )
    yield CheckResult("error", "lost" + (f" ({why})" if why else ""), text, e.SLOT_LOST, fix=fix)


def _retained(examined: ExaminedServer) -> Iterator[CheckResult]:
    """Checks how much log the slot holds, how fast that grows, and when it ends."""
    found = examined.slot
    if found is None or found.restart_lsn is None:
        yield ok("nothing")
        return
    kept, per_s = examined.row(
        f"select pg_wal_lsn_diff({WRITTEN}::pg_lsn, restart_lsn)::float8,"
        " (select wal_bytes / greatest(1, extract(epoch from now() - stats_reset)) from pg_stat_wal)::float8"
        " from pg_replication_slots where slot_name = %s",
        examined.settings.slot,
    )
    measured = f"{size(kept)}, the log grows by {size((per_s or 0) * 3600)} an hour on average"
    left = found.safe_wal_size / per_s if found.safe_wal_size is not None and per_s else None
    if left is not None:
        measured += f", room for {duration(left)}"
    if found.active_pid is None and left is not None and left < FORECAST_S_MIN:
        text = f"nobody reads the slot, and it is lost in {duration(left)}"
        hint = "Start the connector, or raise max_slot_wal_keep_size."
        yield CheckResult("warning", measured, text, e.SLOT_LOST, hint=hint)
    elif kept > RETAINED_BYTES:
        hint = "Is the connector running, and does it keep up? See the check of long transactions too."
        yield CheckResult("warning", measured, f"the slot keeps {size(kept)} of log", hint=hint)
    else:
        yield ok(measured)


def _split(examined: ExaminedServer) -> Iterator[CheckResult]:
    others = slots.of_other_splits(examined.connection, examined.settings) if examined.settings.slot_number == 0 else []
    count, most = examined.settings.raw["slot.count"], examined.settings.raw["tasks.max"]
    if not others and count < most:
        text = f"tasks.max is {most}, and there are as many tasks as slots: {count}"
        hint = (
            "slot.count gives a connector more slots, each with its share of the tables; choose before the first start."
        )
        yield CheckResult("note", f"{count} of {most} tasks", text, key="slot.count", hint=hint)
        return
    if not others:
        yield ok("one" if count == 1 else "no slot of another split")
        return
    text = f"slots of another slot.count exist: {', '.join(others)}"
    drops = tuple(f"SELECT pg_drop_replication_slot({fixes.literal(name)})" for name in others)
    fix = Repair(drops, "With the connector stopped and its offsets deleted; all rows are read again then.")
    yield CheckResult("error", f"{len(others)} others", text, e.SLOTS_CHANGED, "slot.count", fix=fix)


def _feedback(examined: ExaminedServer) -> Iterator[CheckResult]:
    """Checks hot_standby_feedback on a standby: the primary removes rows of the catalog that a slot here needs, unless
    it is told of them."""
    if not is_standby(examined.connection):
        yield ok("the slot is on a primary")
        return
    told, slot = examined.server["hot_standby_feedback"] == "on", examined.server["primary_slot_name"]
    measured = f"hot_standby_feedback {'on' if told else 'off'}, primary_slot_name {slot or 'empty'}"
    if told and slot:
        yield ok(measured)
        return
    # Which slot is the standby's nobody here knows.
    fix = (
        Repair(steps=_ON_STANDBY)
        if told
        else fixes.parameter(examined.flavour, "hot_standby_feedback", "on", restart=False)
    )
    text = "the primary is not told which rows of its catalog this standby's slot needs"
    if told:
        text = "without a slot of its own on the primary the standby tells it nothing while it is cut off"
    text += ": when a vacuum removes them the slot is lost"
    yield CheckResult("warning", measured, text, e.SLOT_LOST, "slot.on.standby", _ON_STANDBY, fix)


_ON_STANDBY = "The standby needs hot_standby_feedback = on, and primary_slot_name with a physical slot of the primary."


def _synchronised(examined: ExaminedServer) -> Iterator[CheckResult]:
    """A failover slot that runs ahead of the standby that takes over has handed on what that one never had."""
    if examined.version < failover_slots.VERSION or not _is_kept(examined):
        at_all = examined.version >= failover_slots.VERSION
        yield ok("no failover slot" if at_all else f"not in PostgreSQL {examined.version // 10000}")
        return
    physical = dict(examined.rows(failover_slots.PHYSICAL))
    found = failover_slots.standbys_of(examined.server["synchronized_standby_slots"], physical)
    if not found.named:
        # Made so by itself, the slot of a server without standbys is nothing to speak of.
        if not physical and not examined.settings.raw[failover_slots.KEY]:
            yield ok("no standby")
            return
        text = "synchronized_standby_slots is empty: changes may be handed on that the standby that takes over lacks"
        value = ", ".join(physical) or "STANDBY_SLOT"
        fix = fixes.parameter(examined.flavour, "synchronized_standby_slots", value, restart=False)
        yield CheckResult("warning", "empty", text, key=failover_slots.KEY, fix=fix)
        return
    measured = ", ".join(found.named)
    if found.are_waited_for:
        yield ok(measured)
        return
    lacking = f"do not exist: {', '.join(found.missing)}"
    what = lacking if found.missing else f"are read by no standby: {', '.join(found.idle)}"
    hint = "Start the standby, or take its slot out of synchronized_standby_slots."
    text = f"the stream waits for slots of synchronized_standby_slots that {what}"
    yield CheckResult(
        "error" if found.missing else "warning", measured, text, e.STANDBY_SLOTS, failover_slots.KEY, hint
    )


def _two_phase(examined: ExaminedServer) -> Iterator[CheckResult]:
    rows = examined.rows("select two_phase from pg_replication_slots where slot_name = %s", examined.settings.slot)
    if rows and rows[0][0]:
        text = "the slot decodes transactions when they are prepared; this connector reads committed ones"
        yield CheckResult("error", "two_phase", text, e.SLOT_UNFIT, "slot.name")
        return
    yield ok("off")


def _position(examined: ExaminedServer) -> Iterator[CheckResult]:
    if examined.position is None:
        yield CheckResult("unknown", "", "the connector's stored position is not known here")
        return
    stored = StoredPosition.from_json(examined.position)
    stream = ReplicationStream(conninfo(examined.settings, APPLICATION_NAME, replication=True))
    try:
        identity = stream.identify()
        position_checks.check(stored, identity, examined.slot, examined.settings, stream.timeline_history)
    except CdcError as exc:
        yield CheckResult("error", "", exc.message, exc.code, "slot.name", exc.hint)
        return
    finally:
        stream.close()
    yield ok("slot, server and stored position belong together")


CHECKS = (
    DoctorCheck("decoding.wal_level", "Only a log of level logical tells what happened to rows.", _wal_level),
    DoctorCheck("decoding.slots_free", "The connector needs a slot of its own.", _free_slots),
    DoctorCheck("decoding.senders_free", "The stream needs a walsender.", _free_senders),
    DoctorCheck("decoding.failover", "After a failover the stream goes on only from a slot that followed.", _failover),
    DoctorCheck("decoding.standbys", "A slot that stays behind at a failover costs a new snapshot.", _standbys,
          validates=False),
    DoctorCheck("decoding.feedback", "A slot on a standby is lost when the primary removes what decoding needs.", _feedback,
          validates=False),
    DoctorCheck("decoding.synchronised", "What a failover slot hands on must be on the standby that takes over.",
          _synchronised, validates=False),
    DoctorCheck("decoding.slot_limit", "A slot that nobody reads keeps the log until the disk is full.", _wal_limit,
          validates=False),
    DoctorCheck("decoding.idle_timeout", "A paused connector must find its slot again.", _idle_timeout, validates=False),
    DoctorCheck("decoding.spill", "Transactions larger than the memory for decoding are written to disk and read again.",
          _spill, validates=False),
    DoctorCheck("slot.state", "The slot must be ours, intact, and read by nobody else.", _state),
    DoctorCheck("slot.split", "Another slot.count gives tables to other slots, which would hand their changes on again.",
          _split),
    DoctorCheck("slot.retained", "The log that a slot keeps fills the disk, or the slot is lost at its limit.", _retained,
          validates=False),
    DoctorCheck("slot.two_phase", "Prepared transactions may still be rolled back.", _two_phase),
    DoctorCheck("slot.position", "What the slot has dropped before the stored position is lost to the connector.", _position,
          validates=False),
)  # fmt: skip
