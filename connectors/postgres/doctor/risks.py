"""What of others on the server holds the slot back, fills the disk, or is never captured."""

from __future__ import annotations

from collections.abc import Iterator

from cdcworker.connectors.checks import CheckResult, DoctorCheck, Repair, ok
from cdcworker.connectors.postgres.doctor.examined_server import ExaminedServer, duration, listed, size
from cdcworker.connectors.postgres.server.fixes import literal
from cdcworker.connectors.postgres.transport.server_functions import WRITTEN

OLD_S = 300.0
ORPHAN_BYTES = 1 << 30


def _transactions(examined: ExaminedServer) -> Iterator[CheckResult]:
    rows = examined.rows(
        "select pid, coalesce(application_name, ''), extract(epoch from now() - xact_start)::float8"
        " from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid() order by xact_start limit 5"
    )
    if not rows:
        yield ok("no writing transaction is open")
        return
    pid, application, age = rows[0]
    measured = f"the oldest is {duration(age or 0)} old"
    if (age or 0) < OLD_S:
        yield ok(measured)
        return
    text = f"backend {pid} ({application or 'no name'}) has a transaction open for {duration(age)}"
    fix = Repair((f"SELECT pg_terminate_backend({pid})",), "Only if nobody needs it any more.")
    yield CheckResult("warning", measured, text, fix=fix)


def _prepared(examined: ExaminedServer) -> Iterator[CheckResult]:
    rows = examined.rows(
        "select gid, extract(epoch from now() - prepared)::float8 from pg_prepared_xacts"
        " where database = current_database() order by prepared"
    )
    if not rows:
        yield ok("none")
        return
    gid, age = rows[0]
    text = f"{len(rows)} prepared transactions are open, the oldest for {duration(age)}"
    fix = Repair((f"ROLLBACK PREPARED {literal(gid)}",), "Or COMMIT PREPARED: whoever prepared it knows.")
    yield CheckResult("warning" if age > OLD_S else "note", f"{len(rows)}", text, fix=fix)


def _orphans(examined: ExaminedServer) -> Iterator[CheckResult]:
    rows = examined.rows(
        f"select slot_name, coalesce(pg_wal_lsn_diff({WRITTEN}::pg_lsn, restart_lsn), 0)::float8"
        " from pg_replication_slots where not active and not temporary and slot_name <> all(%s) order by 2 desc",
        examined.settings.slots,
    )
    if not rows:
        yield ok("none")
        return
    name, kept = rows[0]
    names = listed([f"{row[0]} ({size(row[1])})" for row in rows], 5)
    text = f"slots that nobody reads keep the log: {names}"
    fix = Repair((f"SELECT pg_drop_replication_slot({literal(name)})",), "Only if its reader never comes back.")
    yield CheckResult("warning" if kept >= ORPHAN_BYTES else "note", f"{len(rows)} slots, {size(kept)}", text, fix=fix)


def _wal(examined: ExaminedServer) -> Iterator[CheckResult]:
    files, total = examined.row("select count(*), coalesce(sum(size), 0)::float8 from pg_ls_waldir()")
    yield ok(f"{size(total)} in {files} files; the disk's free space is not visible over SQL")


def _uncaptured(examined: ExaminedServer) -> Iterator[CheckResult]:
    schemas = sorted({schema for _, schema, _ in examined.tables})
    (count,) = examined.row(
        "select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where c.relkind = 'S' and n.nspname = any(%s)",
        schemas,
    )
    if not count:
        yield ok("no sequences")
        return
    hint = "Set sequences from the tables' highest values before a target takes over; DDL is not replicated either."
    yield CheckResult("note", f"{count} sequences", "the values of sequences are not captured", hint=hint)


CHECKS = (
    DoctorCheck("risk.transactions", "A slot starts, and lets go of the log, only when older transactions have ended.",
          _transactions, validates=False),
    DoctorCheck("risk.prepared", "A forgotten prepared transaction holds the log for ever.", _prepared, validates=False),
    DoctorCheck("risk.orphan_slots", "Slots without a reader fill the disk.", _orphans, validates=False),
    DoctorCheck("risk.wal_volume", "The log shares a disk with the data.", _wal, validates=False),
    DoctorCheck("risk.uncaptured", "Some things are not in the log of changes.", _uncaptured, validates=False),
)  # fmt: skip
