"""A zygote whose tasks do what their config says: obey, hang, spin, leak, flood, leave processes behind."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from cdcworker.connectors import registry
from cdcworker.connectors.api import SinkSpec, TaskContext
from cdcworker.worker import sink_runner, zygote

ORPHAN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
time.sleep(600)
"""


def obey(spec: SinkSpec, context: TaskContext) -> None:
    numbers = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "group": os.getpgrp(),
        "cwd": os.getcwd(),
        "word": os.environ.get("SCRIPTED_WORD", ""),
        "random": random.random(),
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd")),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "arguments": Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0"),
        "modules": sorted(name for name in ("fastavro", "confluent_kafka", "pyspark") if name in sys.modules),
    }
    print("INFO task speaks to its log", file=sys.stderr)
    while not context.stopping():
        context.report(numbers)
        getattr(context, "beat", lambda: None)()
        time.sleep(0.05)


def abandon(spec: SinkSpec, context: TaskContext) -> None:
    """Processes in sessions of their own: one started, one forked, one whose parent has ended; all deaf."""
    started = subprocess.Popen([sys.executable, "-I", "-c", ORPHAN])
    forked = os.fork()
    if forked == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.setsid()
        time.sleep(600)
    middle = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            f"import os\nif (p := os.fork()): print(p)\nelse:\n os.close(1)\n exec({ORPHAN!r})",
        ],
        stdout=subprocess.PIPE,
        check=True,
    )
    context.report({"left": [started.pid, forked, int(middle.stdout)]})
    if spec.config["then"] == "exit":
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


DOINGS = {"obey": obey, "abandon": abandon}


class Scripted:
    def __init__(self, config) -> None:
        pass

    def run(self, spec: SinkSpec, context: TaskContext) -> None:
        DOINGS[spec.config["do"]](spec, context)


if __name__ == "__main__":
    registry._BY_NAME["scripted"] = registry.Plugin("scripted", "sink", "__main__:Scripted")
    machine = sink_runner.Machine("", ())
    sink_runner.run_sink = functools.partial(sink_runner.run_sink, machine=lambda *_jars: machine)
    sys.exit(zygote.main())
