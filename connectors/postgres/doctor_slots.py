"""Is the server's log decoded, is there room for a slot, and how is ours?"""

from __future__ import annotations

from collections.abc import Iterator

from cdcworker.connectors.checkup import Check, Fix, Result, ok
from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres import failover, fixes, safety
from cdcworker.connectors.postgres import slot as slots
from cdcworker.connectors.postgres.connection import APPLICATION, conninfo
from cdcworker.connectors.postgres.patient import APPLICATION_NAME, Patient, duration, size
from cdcworker.connectors.postgres.position import StoredPosition
from cdcworker.connectors.postgres.standby import WRITTEN, is_standby
from cdcworker.connectors.postgres.stream import ReplicationStream
from cdcworker.schemas.errors import CdcError

MB = 1024 * 1024
SPILL_BYTES = 1 << 30
FORECAST_S_MIN = 86_400.0
RETAINED_BYTES = 10 << 30


def _wal_level(patient: Patient) -> Iterator[Result]:
    level = patient.server["wal_level"]
    if level == "logical":
        yield ok(level)
        return
    fix = fixes.parameter(patient.flavour, fixes.LOGICAL, "logical", restart=True)
    yield Result("error", level, f"wal_level is {level}", e.WAL_LEVEL, fix=fix)


def _free_slots(patient: Patient) -> Iterator[Result]:
    used, most = patient.row(
        "select (select count(*) from pg_replication_slots), current_setting('max_replication_slots')::int"
    )
    yield from _free(patient, "replication slots", "max_replication_slots", used, most)


def _free_senders(patient: Patient) -> Iterator[Result]:
    used, most = patient.row(
        "select (select count(*) from pg_stat_replication), current_setting('max_wal_senders')::int"
    )
    yield from _free(patient, "walsenders", "max_wal_senders", used, most)


def _free(patient: Patient, what: str, setting: str, used: int, most: int) -> Iterator[Result]:
    measured, free, lacking = f"{used} of {most} in use", most - used, patient.lacking
    if free >= max(lacking, 1):
        yield ok(measured)
        return
    fix = fixes.parameter(patient.flavour, setting, str(most + max(10, lacking)), restart=True)
    if not lacking:
        text = f"all {most} {what} are in use; this connector has its slot"
        yield Result("note", measured, text, e.NO_FREE_SLOT, fix=fix)
        return
    hint = f"Raise {setting}, or drop a slot that nobody reads."
    text = f"{free} of {most} {what} are free; {lacking} are needed" if free > 0 else f"all {most} {what} are in use"
    yield Result("error", measured, text, e.NO_FREE_SLOT, hint=hint, fix=fix)


def _wal_limit(patient: Patient) -> Iterator[Result]:
    limit = int(patient.server["max_slot_wal_keep_size"])
    if limit >= 0:
        yield ok(f"a slot may keep {size(limit * MB)}")
        return
    text = "nothing limits what a slot keeps: a connector that is stopped for long fills the server's disk"
    fix = fixes.parameter(patient.flavour, "max_slot_wal_keep_size", "51200", restart=False)
    hint = "With a limit the slot is lost instead, and the connector says so; choose what the disk can bear (in MB)."
    yield Result("warning", "no limit", text, hint=hint, fix=fix)


def _idle_timeout(patient: Patient) -> Iterator[Result]:
    found = patient.server.get("idle_replication_slot_timeout")
    if found is None:
        yield ok(f"not in PostgreSQL {patient.version // 10000}")
    elif int(found) == 0:
        yield ok("off")
    else:
        text = f"the slot is lost when the connector does not read it for {duration(int(found))}"
        fix = fixes.parameter(patient.flavour, "idle_replication_slot_timeout", "0", restart=False)
        yield Result("warning", duration(int(found)), text, fix=fix)


def _spill(patient: Patient) -> Iterator[Result]:
    memory = f"logical_decoding_work_mem {size(int(patient.server['logical_decoding_work_mem']) * 1024)}"
    rows = patient.rows(
        "select spill_txns, spill_bytes from pg_stat_replication_slots where slot_name = %s", patient.settings.slot
    )
    if not rows:
        yield ok(f"{memory}, nothing decoded yet")
        return
    times, spilt = rows[0]
    measured = f"{memory}, {times} transactions spilt {size(spilt)} to disk"
    if spilt < SPILL_BYTES:
        yield ok(measured)
        return
    fix = fixes.parameter(patient.flavour, "logical_decoding_work_mem", "262144", restart=False)
    yield Result("note", measured, "large transactions go to the server's disk while they are decoded", fix=fix)


def _failover(patient: Patient) -> Iterator[Result]:
    wanted = patient.settings.raw[failover.KEY]
    if wanted and not failover.is_possible(patient.connection):
        hint = "Failover slots need a primary of PostgreSQL 17; an ordinary slot is made."
        yield Result("note", "", "slot.failover has no effect here", e.SERVER_VERSION, failover.KEY, hint)
        return
    if wanted is None and patient.slot and patient.slot.failover is False and failover.is_possible(patient.connection):
        text = "the slot was made without failover, and does not follow when a standby takes over"
        command = failover.alteration(patient.slot.name)
        hint = (
            "With slot.failover=true the next start alters it; false says that it is meant so. By hand, with the"
            f" connector stopped, on a connection with replication=database: {command}"
        )
        yield Result("note", "made without", text, key=failover.KEY, hint=hint)
        return
    yield ok("the slot follows to synchronised standbys" if _is_kept(patient) else "the slot does not follow")


def _is_kept(patient: Patient) -> bool:
    """Whether standbys keep the slot, once the connector has started."""
    wanted, found = patient.settings.raw[failover.KEY], patient.slot
    if wanted is False or (wanted is None and found is not None):
        return found is not None and bool(found.failover)
    return failover.is_possible(patient.connection)


def _standbys(patient: Patient) -> Iterator[Result]:
    """A server with standbys and a slot that stays behind when one of them takes over."""
    names = [row[0] for row in patient.rows("select slot_name from pg_replication_slots where slot_type = 'physical'")]
    if not names or patient.version < failover.VERSION or _is_kept(patient):
        yield ok(f"{len(names)} physical slots")
        return
    text = "there are standbys, and the slot does not follow when one of them takes over"
    hint = "slot.failover=true, with sync_replication_slots = on and hot_standby_feedback = on at the standby."
    yield Result("note", f"{len(names)} physical slots", text, key="slot.failover", hint=hint)


def _state(patient: Patient) -> Iterator[Result]:
    found = patient.slot
    if found is None:
        yield ok(f"{patient.settings.slot} does not exist yet; the connector makes it")
        return
    try:
        slots.check_kind(found, patient.settings.dbname)
    except CdcError as exc:
        yield Result("error", found.plugin or found.kind, exc.message, exc.code, hint=exc.hint)
        return
    if found.wal_status == "lost":
        yield from _lost(patient)
        return
    if found.active_pid is None:
        yield ok(f"{found.name}, {found.wal_status}, nobody reads it")
        return
    rows = patient.rows(
        "select coalesce(application_name, ''), extract(epoch from now() - backend_start)::float8"
        " from pg_stat_activity where pid = %s", found.active_pid,
    )  # fmt: skip
    application, since = rows[0] if rows else ("", None)
    measured = f"{found.name}, {found.wal_status}, read by {application or f'backend {found.active_pid}'}"
    measured += f" for {duration(since)}" if since is not None else ""
    if application.startswith(APPLICATION):
        hint = "Fine if this connector is running; two connectors must not share a slot."
        yield Result("note", measured, f"the slot is read by {application}", e.SLOT_IN_USE, hint=hint)
    else:
        yield Result("error", measured, f"backend {found.active_pid} reads the slot", e.SLOT_IN_USE)


def _lost(patient: Patient) -> Iterator[Result]:
    text, why = "the slot exists and has lost WAL that it needed", ""
    if patient.version >= 170000:
        why = patient.row(
            "select coalesce(invalidation_reason, '') from pg_replication_slots where slot_name = %s",
            patient.settings.slot,
        )[0]
    fix = Fix((f"SELECT pg_drop_replication_slot({fixes.literal(patient.settings.slot)})",), "Then reset the offsets.")
    yield Result("error", "lost" + (f" ({why})" if why else ""), text, e.SLOT_LOST, fix=fix)


def _retained(patient: Patient) -> Iterator[Result]:
    """How much log the slot holds, how fast that grows, and when it ends."""
    found = patient.slot
    if found is None or found.restart_lsn is None:
        yield ok("nothing")
        return
    kept, per_s = patient.row(
        f"select pg_wal_lsn_diff({WRITTEN}::pg_lsn, restart_lsn)::float8,"
        " (select wal_bytes / greatest(1, extract(epoch from now() - stats_reset)) from pg_stat_wal)::float8"
        " from pg_replication_slots where slot_name = %s",
        patient.settings.slot,
    )
    measured = f"{size(kept)}, the log grows by {size((per_s or 0) * 3600)} an hour on average"
    left = found.safe_wal_size / per_s if found.safe_wal_size is not None and per_s else None
    if left is not None:
        measured += f", room for {duration(left)}"
    if found.active_pid is None and left is not None and left < FORECAST_S_MIN:
        text = f"nobody reads the slot, and it is lost in {duration(left)}"
        hint = "Start the connector, or raise max_slot_wal_keep_size."
        yield Result("warning", measured, text, e.SLOT_LOST, hint=hint)
    elif kept > RETAINED_BYTES:
        hint = "Is the connector running, and does it keep up? See the check of long transactions too."
        yield Result("warning", measured, f"the slot keeps {size(kept)} of log", hint=hint)
    else:
        yield ok(measured)


def _split(patient: Patient) -> Iterator[Result]:
    others = slots.of_other_splits(patient.connection, patient.settings) if patient.settings.slot_number == 0 else []
    count, most = patient.settings.raw["slot.count"], patient.settings.raw["tasks.max"]
    if not others and count < most:
        text = f"tasks.max is {most}, and there are as many tasks as slots: {count}"
        hint = (
            "slot.count gives a connector more slots, each with its share of the tables; choose before the first start."
        )
        yield Result("note", f"{count} of {most} tasks", text, key="slot.count", hint=hint)
        return
    if not others:
        yield ok("one" if count == 1 else "no slot of another split")
        return
    text = f"slots of another slot.count exist: {', '.join(others)}"
    drops = tuple(f"SELECT pg_drop_replication_slot({fixes.literal(name)})" for name in others)
    fix = Fix(drops, "With the connector stopped and its offsets deleted; all rows are read again then.")
    yield Result("error", f"{len(others)} others", text, e.SLOTS_CHANGED, "slot.count", fix=fix)


def _feedback(patient: Patient) -> Iterator[Result]:
    """On a standby: the primary removes rows of the catalog that a slot here needs, unless it is told of them."""
    if not is_standby(patient.connection):
        yield ok("the slot is on a primary")
        return
    told, slot = patient.server["hot_standby_feedback"] == "on", patient.server["primary_slot_name"]
    measured = f"hot_standby_feedback {'on' if told else 'off'}, primary_slot_name {slot or 'empty'}"
    if told and slot:
        yield ok(measured)
        return
    # Which slot is the standby's nobody here knows.
    fix = (
        Fix(steps=_ON_STANDBY)
        if told
        else fixes.parameter(patient.flavour, "hot_standby_feedback", "on", restart=False)
    )
    text = "the primary is not told which rows of its catalog this standby's slot needs"
    if told:
        text = "without a slot of its own on the primary the standby tells it nothing while it is cut off"
    text += ": when a vacuum removes them the slot is lost"
    yield Result("warning", measured, text, e.SLOT_LOST, "slot.on.standby", _ON_STANDBY, fix)


_ON_STANDBY = "The standby needs hot_standby_feedback = on, and primary_slot_name with a physical slot of the primary."


def _synchronised(patient: Patient) -> Iterator[Result]:
    """A failover slot that runs ahead of the standby that takes over has handed on what that one never had."""
    if patient.version < failover.VERSION or not _is_kept(patient):
        at_all = patient.version >= failover.VERSION
        yield ok("no failover slot" if at_all else f"not in PostgreSQL {patient.version // 10000}")
        return
    physical = dict(patient.rows(failover.PHYSICAL))
    found = failover.standbys_of(patient.server["synchronized_standby_slots"], physical)
    if not found.named:
        # Made so by itself, the slot of a server without standbys is nothing to speak of.
        if not physical and not patient.settings.raw[failover.KEY]:
            yield ok("no standby")
            return
        text = "synchronized_standby_slots is empty: changes may be handed on that the standby that takes over lacks"
        value = ", ".join(physical) or "STANDBY_SLOT"
        fix = fixes.parameter(patient.flavour, "synchronized_standby_slots", value, restart=False)
        yield Result("warning", "empty", text, key=failover.KEY, fix=fix)
        return
    measured = ", ".join(found.named)
    if found.are_waited_for:
        yield ok(measured)
        return
    lacking = f"do not exist: {', '.join(found.missing)}"
    what = lacking if found.missing else f"are read by no standby: {', '.join(found.idle)}"
    hint = "Start the standby, or take its slot out of synchronized_standby_slots."
    text = f"the stream waits for slots of synchronized_standby_slots that {what}"
    yield Result("error" if found.missing else "warning", measured, text, e.STANDBY_SLOTS, failover.KEY, hint)


def _two_phase(patient: Patient) -> Iterator[Result]:
    rows = patient.rows("select two_phase from pg_replication_slots where slot_name = %s", patient.settings.slot)
    if rows and rows[0][0]:
        text = "the slot decodes transactions when they are prepared; this connector reads committed ones"
        yield Result("error", "two_phase", text, e.SLOT_UNFIT, "slot.name")
        return
    yield ok("off")


def _position(patient: Patient) -> Iterator[Result]:
    if patient.position is None:
        yield Result("unknown", "", "the connector's stored position is not known here")
        return
    stored = StoredPosition.from_json(patient.position)
    stream = ReplicationStream(conninfo(patient.settings, APPLICATION_NAME, replication=True))
    try:
        identity = stream.identify()
        safety.check(stored, identity, patient.slot, patient.settings, stream.timeline_history)
    except CdcError as exc:
        yield Result("error", "", exc.message, exc.code, "slot.name", exc.hint)
        return
    finally:
        stream.close()
    yield ok("slot, server and stored position belong together")


CHECKS = (
    Check("decoding.wal_level", "Only a log of level logical tells what happened to rows.", _wal_level),
    Check("decoding.slots_free", "The connector needs a slot of its own.", _free_slots),
    Check("decoding.senders_free", "The stream needs a walsender.", _free_senders),
    Check("decoding.failover", "After a failover the stream goes on only from a slot that followed.", _failover),
    Check("decoding.standbys", "A slot that stays behind at a failover costs a new snapshot.", _standbys,
          validates=False),
    Check("decoding.feedback", "A slot on a standby is lost when the primary removes what decoding needs.", _feedback,
          validates=False),
    Check("decoding.synchronised", "What a failover slot hands on must be on the standby that takes over.",
          _synchronised, validates=False),
    Check("decoding.slot_limit", "A slot that nobody reads keeps the log until the disk is full.", _wal_limit,
          validates=False),
    Check("decoding.idle_timeout", "A paused connector must find its slot again.", _idle_timeout, validates=False),
    Check("decoding.spill", "Transactions larger than the memory for decoding are written to disk and read again.",
          _spill, validates=False),
    Check("slot.state", "The slot must be ours, intact, and read by nobody else.", _state),
    Check("slot.split", "Another slot.count gives tables to other slots, which would hand their changes on again.",
          _split),
    Check("slot.retained", "The log that a slot keeps fills the disk, or the slot is lost at its limit.", _retained,
          validates=False),
    Check("slot.two_phase", "Prepared transactions may still be rolled back.", _two_phase),
    Check("slot.position", "What the slot has dropped before the stored position is lost to the connector.", _position,
          validates=False),
)  # fmt: skip
