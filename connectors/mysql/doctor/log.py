"""The binary log as a whole: how much of it there is, what is left out of it, and what a crash of the server's machine leaves of it."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from typing import Final

from cdcworker.connectors.checks import CheckResult, CheckSkipped, DoctorCheck, Repair, ok
from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.server.examined_server import ExaminedServer
from cdcworker.connectors.mysql.server.facts import ServerFacts
from cdcworker.connectors.mysql.server.grants import MONITORS

CLOCK_S: Final = 5.0
"""Clocks that differ by more make lag look wrong."""
LISTED: Final = 5
_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")


def listed(names: list[str]) -> str:
    """Returns the first names, and how many there are besides."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def size(count: float) -> str:
    """Returns bytes as people read them."""
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"


def _seen_log(examined: ExaminedServer) -> ServerFacts:
    """Returns the facts of a server whose log the user may look at; that it may not, another check tells."""
    if examined.grants().lacks(*MONITORS):
        raise CheckSkipped("the user may not see it")
    return examined.logging_facts()


def _size(examined: ExaminedServer) -> Iterator[CheckResult]:
    facts = _seen_log(examined)
    files = [int(row[1]) for row in examined.ask("show binary logs")]
    measured = f"{size(sum(files))} in {len(files)} files; the disk's free space is not visible over SQL"
    if facts.expiry_s or facts.log_bytes_max:
        yield ok(measured)
        return
    text = "the server removes no log by itself: it grows until the disk is full"
    fix = Repair(
        (facts.set_global("binlog_expire_logs_seconds", str(14 * 86_400)),), "Or remove it by PURGE BINARY LOGS."
    )
    yield CheckResult("warning", measured, text, fix=fix)


def _filters(examined: ExaminedServer) -> Iterator[CheckResult]:
    facts = _seen_log(examined)
    is_new = not facts.is_mariadb and facts.version >= (8, 2)
    (status,) = examined.named("show binary log status" if is_new else "show master status") or ({},)
    done, ignored = (_names(status.get(name)) for name in ("Binlog_Do_DB", "Binlog_Ignore_DB"))
    databases = sorted({database for database, _ in examined.captured()})
    lost = [name for name in databases if (done and name not in done) or (not done and name in ignored)]
    measured = (
        f"binlog_do_db = {','.join(sorted(done)) or 'none'}, binlog_ignore_db = {','.join(sorted(ignored)) or 'none'}"
    )
    if lost:
        text = f"changes of captured databases are not in the log: {listed(lost)}"
        fix = Repair(steps="Take the filter out of the server's configuration, and restart it.")
        yield CheckResult("error", measured, text, fix=fix)
    elif done or ignored:
        text = "statements that change another database than their session's may be left out of the log"
        yield CheckResult("note", measured, text)
    else:
        yield ok(measured)


def _names(value: object) -> set[str]:
    return {name.strip() for name in str(value or "").split(",") if name.strip()}


def _sync(examined: ExaminedServer) -> Iterator[CheckResult]:
    facts = examined.logging_facts()
    measured = f"sync_binlog = {facts['sync_binlog']}"
    if facts["sync_binlog"] == "1":
        yield ok(measured)
        return
    text = "after a crash of the server's machine its log may lack transactions that were read already"
    yield CheckResult(
        "note", measured, text, fix=Repair((facts.set_global("sync_binlog", "1"),), "Commits wait for the disk.")
    )


def _compression(examined: ExaminedServer) -> Iterator[CheckResult]:
    facts = examined.logging_facts()
    measured = "compressed" if facts.compresses_log else "not compressed"
    # MariaDB compresses with zlib, which is always there.
    if not facts.compresses_log or facts.is_mariadb or importlib.util.find_spec("pyarrow"):
        yield ok(measured)
        return
    fix = Repair((facts.set_global("binlog_transaction_compression", "OFF"),), "Or install pyarrow on the workers.")
    yield CheckResult(
        "error", measured, "pyarrow, which inflates them, is not installed here", e.PAYLOAD_LIBRARY, fix=fix
    )


def _clock(examined: ExaminedServer) -> Iterator[CheckResult]:
    ((theirs,),) = examined.ask("select unix_timestamp(now(6))")
    apart = float(theirs) - time.time()
    measured = f"{apart:+.1f} s"
    if abs(apart) <= CLOCK_S:
        yield ok(measured)
    else:
        text = f"the server's clock differs from this machine's by {abs(apart):.0f} s: lag is shown that much wrong"
        yield CheckResult("warning", measured, text, fix=Repair(steps="Let both follow one time server."))


CHECKS: Final = (
    DoctorCheck("log.filters", "What the server leaves out of its log nobody can read.", _filters),
    DoctorCheck("log.compression", "Compressed transactions need a library to be read.", _compression),
    DoctorCheck("log.size", "The log shares a disk with the data.", _size, validates=False),
    DoctorCheck("log.sync", "A log that was read and then lost is another history than the warehouse has.", _sync, validates=False),
    DoctorCheck("server.clock", "The age of changes is told from the server's clock.", _clock, validates=False),
)  # fmt: skip
