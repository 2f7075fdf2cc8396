"""What the tests of one process share and none may leave changed: a later test would pass or fail by their order."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cdcworker.schemas import failpoints

OF_PYTEST = "PYTEST_CURRENT_TEST"
OF_SPARK = ("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE")
"""Set by each session of Spark's for the threads that talk to its JVM; it outlives the test that started it."""
LOGGERS = ("cdcworker", "kazoo")
SET_BY_PROGRAMS = ("", "uvicorn")
"""Loggers whose levels a program sets when it begins to log: what runs one in its own process gets them back."""
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPROF)


def process_state() -> dict[str, Any]:
    """Each kind of state by a name that a failure shows."""
    return {
        "environment": {name: text for name, text in os.environ.items() if name not in (OF_PYTEST, *OF_SPARK)},
        "working directory": os.getcwd(),
        "failpoints": (failpoints._listener, dict(failpoints._points)),
        "signal handlers": {number.name: signal.getsignal(number) for number in SIGNALS},
        "logging": (logging.root.manager.disable, *((name, logging.getLogger(name).level) for name in LOGGERS)),
        "garbage collection": gc.isenabled(),
    }


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs, with both values; of dictionaries only the entries that differ."""
    found = {}
    for name in before:
        old, new = before[name], after[name]
        if old == new:
            continue
        if isinstance(old, dict):
            keys = {key for key in {*old, *new} if old.get(key) != new.get(key)}
            old, new = ({key: one[key] for key in sorted(keys & one.keys())} for one in (old, new))
        found[name] = (old, new)
    return found


@contextmanager
def unchanged() -> Iterator[None]:
    """Fails when the process is not as it was before. The environment, the failpoints and what programs set of logging are put
    back first, so that one test alone is blamed."""
    before = process_state()
    levels = {name: logging.getLogger(name).level for name in SET_BY_PROGRAMS}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    found = changes(before, process_state())
    if "environment" in found:
        kept = {name: os.environ[name] for name in (OF_PYTEST, *OF_SPARK) if name in os.environ}
        os.environ.clear()
        os.environ.update(before["environment"] | kept)
    if "failpoints" in found:
        failpoints.arm("")
        failpoints.listen(None)
    assert not found, f"left behind by this test, before and after: {found}"
