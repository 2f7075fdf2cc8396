"""A fork server whose tasks do what their config says: obey, hang, spin, leak, flood, leave processes behind."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.sink import SinkSpec
from cdcworker.connectors.registry import shipped
from cdcworker.connectors.registry.plugin import Plugin
from cdcworker.worker.task import fork_server, sink_runner

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
        context.beat("", 0.0)
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


def hang(spec: SinkSpec, context: TaskContext) -> None:
    """Says all the time how well it does, and makes no step."""
    context.beat("the last step", 0.0)
    while True:
        context.report({"pid": os.getpid()})
        time.sleep(0.05)


def spin(spec: SinkSpec, context: TaskContext) -> None:
    context.report({"pid": os.getpid()})
    while True:
        pass


def halt(spec: SinkSpec, context: TaskContext) -> None:
    context.report({"pid": os.getpid()})
    os.kill(os.getpid(), signal.SIGSTOP)


def wait(spec: SinkSpec, context: TaskContext) -> None:
    """One step that takes longer than the limit and said so, then idle ones."""
    context.beat("a long step", 30.0)
    until = time.monotonic() + float(spec.config["seconds"])
    while time.monotonic() < until and not context.stopping():
        time.sleep(0.05)
    context.report({"waited": True})
    while not context.stopping():
        context.beat("idle", 0.0)
        time.sleep(0.05)


LEAK = "import time; hoard = bytearray(b'x') * (%d << 20); time.sleep(600)"


def leak(spec: SinkSpec, context: TaskContext) -> None:
    """Memory and processor time that a process of a process in a session of its own uses."""
    child = subprocess.Popen([sys.executable, "-I", "-c", LEAK % 300], start_new_session=True)
    context.report({"left": [child.pid]})
    while not context.stopping():
        context.beat("", 0.0)
        time.sleep(0.05)


def work(spec: SinkSpec, context: TaskContext) -> None:
    """Uses one core, in a child."""
    child = subprocess.Popen([sys.executable, "-I", "-c", "while True: pass"])
    while not context.stopping():
        context.beat("", 0.0)
        context.report({"child": child.pid})
        time.sleep(0.05)


def pipe_of_worker() -> int:
    """The private descriptor of the task's messages: the one pipe besides the three streams."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and os.readlink(f"/proc/self/fd/{name}").startswith("pipe:"):
            return int(name)
    raise AssertionError("no pipe")


FLOODS = {
    "messages": b'{"type": "metrics", "records": 1}\n' * 1000,
    "states": b'{"type": "status", "state": "RUNNING", "error": null}\n' * 1000,
    "noise": b'{"type": "met\n\xff\xfe\n' * 1000,
    "endless": b"x" * 65536,
}


def flood(spec: SinkSpec, context: TaskContext) -> None:
    what = spec.config["what"]
    target = 2 if what == "log" else pipe_of_worker()
    text = FLOODS.get(what, b"INFO nothing to say\n" * 1000)
    while True:
        os.write(target, text)


def mute(spec: SinkSpec, context: TaskContext) -> None:
    """Closes every descriptor that it has."""
    context.report({"pid": os.getpid()})
    os.closerange(0, 100)
    time.sleep(600)


DOINGS = {doing.__name__: doing for doing in (obey, abandon, hang, spin, halt, wait, leak, work, flood, mute)}


class Scripted:
    def __init__(self, config) -> None:
        pass

    def run(self, spec: SinkSpec, context: TaskContext) -> None:
        DOINGS[spec.config["do"]](spec, context)


if __name__ == "__main__":
    shipped.BY_NAME["scripted"] = Plugin("scripted", "sink", "__main__:Scripted")
    machine = sink_runner.SinkMachine("", ())
    sink_runner.run_sink = functools.partial(sink_runner.run_sink, machine=lambda *_jars: machine)
    sys.exit(fork_server.main())
