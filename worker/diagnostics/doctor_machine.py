"""This machine under examination: interpreter, Java, libraries, memory, disk, clock, and what Kafka says."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cdcworker.connectors.checks import CheckResult, DoctorCheck, ExaminedTarget, Repair, examine, ok
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.diagnostics import doctor_kafka
from cdcworker.worker.diagnostics.examined_machine import DoctorMachine

MEMORY_BYTES_MIN, DISK_BYTES_MIN = 1 << 30, 2 << 30
FILES_MIN = 4096
TIMEOUT_S = 15.0
TIME_ERROR = 5
"""What adjtimex answers when nothing keeps the clock in step."""


def examine_stack(machine: DoctorMachine) -> Iterator[ExaminedTarget]:
    checks = [*CHECKS, *(doctor_kafka.CHECKS if machine.kafka else ())]
    return examine(checks, machine, timeout_s=TIMEOUT_S)


def _python(_: DoctorMachine) -> Iterator[CheckResult]:
    yield ok(f"Python {platform.python_version()}, {sys.platform}, {os.cpu_count()} processors")


def _java(_: DoctorMachine) -> Iterator[CheckResult]:
    from cdcworker.worker.java.runtime import find_java

    try:
        java = find_java()
    except CdcError as exc:
        yield CheckResult("warning", "none", exc.message, exc.code, hint=exc.hint)
        return
    yield ok(f"Java {java.version} from {java.origin}: {java.program}")


def _jars(machine: DoctorMachine) -> Iterator[CheckResult]:
    for section in ("spark", "kafka"):
        yield _section(section, deep=machine.deep)


def _section(section: str, *, deep: bool) -> CheckResult:
    """Their names; their content only when asked for, since that reads hundreds of megabytes."""
    from cdcworker.worker.java import jars

    wanted = jars.section(section)
    folder = jars.folder(section)
    if deep:
        wrong = [str(finding.jar) for finding in jars.verify(section) if finding.state != "ok"]
    else:
        choices = [(jar, (jar, *jar.alternatives)) for jar in wanted]
        wrong = [str(jar) for jar, some in choices if not any((folder / one.file_name).is_file() for one in some)]
    others = [
        str(one) for jar in wanted for one in jar.alternatives if (folder / one.file_name).is_file()
    ]  # fmt: skip
    measured = f"{section}: {len(wanted) - len(wrong)} of {len(wanted)} libraries"
    measured += f", instead of the first choice: {', '.join(others)}" if others else ""
    if not wrong:
        return ok(measured)
    what = "sinks of Spark cannot start" if section == "spark" else "the embedded stack cannot start"
    text = f"{len(wrong)} libraries are missing or not as locked ({wrong[0]}): {what}"
    return CheckResult("warning", measured, text, fix=Repair(steps=f"cdcworker jars fetch {section}"))


def _memory(machine: DoctorMachine) -> Iterator[CheckResult]:
    available = _meminfo(machine.meminfo.read_text(encoding="ascii"))
    limit, used = _number(machine.cgroup / "memory.max"), _number(machine.cgroup / "memory.current")
    if limit is not None and used is not None:
        available = min(available, limit - used)
    measured = f"{available / (1 << 30):.1f} GB available" + (" within the limit of the container" if limit else "")
    if available < MEMORY_BYTES_MIN:
        text = "less than 1 GB is available: a Spark sink alone takes about that much"
        yield CheckResult("warning", measured, text, hint="Give it more memory, or run fewer tasks here.")
    else:
        yield ok(measured)


def _meminfo(text: str) -> int:
    line = next(line for line in text.splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _disk(_: DoctorMachine) -> Iterator[CheckResult]:
    from cdcworker.worker.java.jars import cache_dir

    seen = set()
    for name, path in (("temporary files", Path(tempfile.gettempdir())), ("cache", cache_dir())):
        there = next(folder for folder in (path, *path.parents) if folder.exists())
        device = there.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        free = shutil.disk_usage(there).free
        measured = f"{free / (1 << 30):.1f} GB free for {name} ({there})"
        if free < DISK_BYTES_MIN:
            yield CheckResult("warning", measured, f"little room is left for {name}", hint="Free some, or set TMPDIR.")
        else:
            yield ok(measured)


def _clock(_: DoctorMachine) -> Iterator[CheckResult]:
    """Asks the kernel whether something keeps the clock in step; changes nothing (modes 0)."""
    if sys.platform != "linux":
        yield CheckResult("unknown", "", "the kernel of this system is not asked")
        return
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    if state == TIME_ERROR:
        text = "nothing keeps this machine's clock in step: lag and ages that are shown may be wrong"
        yield CheckResult("warning", "not synchronised", text, hint="Run chrony or another NTP client on the host.")
    elif state < 0:
        yield CheckResult("unknown", "", "the kernel does not tell here")
    else:
        yield ok("synchronised")


def _files(_: DoctorMachine) -> Iterator[CheckResult]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "any number" if soft == resource.RLIM_INFINITY else str(soft)
    if soft != resource.RLIM_INFINITY and soft < FILES_MIN:
        text = f"a process may open {soft} files: Kafka clients with many partitions need more"
        yield CheckResult("warning", most, text, hint=f"ulimit -n {FILES_MIN} (at most {hard} here)")
    else:
        yield ok(f"{most} open files")


CHECKS = (
    DoctorCheck("stack.python", "What runs the worker.", _python),
    DoctorCheck("stack.java", "Spark sinks, and the embedded Kafka, run on Java 17 to 21.", _java),
    DoctorCheck("stack.jars", "Spark's libraries are loaded by hash, not by hope.", _jars),
    DoctorCheck("stack.memory", "Without memory the kernel ends tasks.", _memory),
    DoctorCheck("stack.disk", "Spark and large transactions spill to disk.", _disk),
    DoctorCheck("stack.clock", "Lag is the difference of two clocks.", _clock),
    DoctorCheck("stack.files", "Every partition and connection is an open file.", _files),
)
