"""A standalone cluster of Spark's on this machine: a master, a worker and the executors that it starts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from cdcworker.connectors.spark.runtime.java_gateway import jvm_flags, spark_home
from cdcworker.worker.java.runtime import find_java
from cdcworker.worker.linux.procfs import pids, read_stat

from .spark_world import eventually, group_is_gone

SECRET = "known-to-all-its-daemons"
STARTER = """
import os, sys
from cdcworker.worker.linux.process_group import die_with_parent
die_with_parent(os.getppid())
os.execv(sys.argv[1], sys.argv[1:])
"""
READY_S_MAX = 150
PARALLEL = {"staging.parallel.min.bytes": "1", "spark.pyspark.python": sys.executable}
"""Of a sink whose executors write stage tables too, however small."""
LISTENING = "0A"


class Standalone:
    def __init__(self, folder, **environment):
        """`environment` is added to that of all its processes."""
        self.folder, self.environment = folder, environment
        self.processes = []
        self.url = ""

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def start(self):
        place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        self._run("master", *place)
        self.url = eventually(
            lambda: self._logged("master", r"Starting Spark master at (spark://\S+)"), "a master", READY_S_MAX
        )
        self.add_worker("worker")

    def add_worker(self, name, host="127.0.0.1"):
        """Another address of this machine is another host to Spark."""
        place = ["--host", host, "--port", "0", "--webui-port", "0"]
        process = self._run(name, *place, "--cores", "2", "--memory", "2g", "-d", str(self.folder / name), self.url)
        eventually(lambda: self._logged(name, r"(Successfully registered) with master"), "a worker", READY_S_MAX)
        return process

    def config(self, **more):
        """Of a sink whose tasks run here."""
        return {
            "spark.launcher": "client",
            "spark.master": self.url,
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.authenticate.secret": SECRET,
            **more,
        }

    def executors(self):
        return self._running(b"CoarseGrainedExecutorBackend")

    def pythons(self):
        """What executors have started for tasks in Python."""
        return self._running(b"pyspark.daemon")

    def kill_worker(self):
        """With its executors, as when its machine goes."""
        worker = self.processes.pop()
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def _running(self, word):
        """Those that are dead left out."""
        found = []
        for pid in pids():
            stat = read_stat(pid)
            if stat is None or stat.state in "ZX" or stat.session not in [one.pid for one in self.processes]:
                continue
            with contextlib.suppress(OSError):
                if word in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def close(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for process in self.processes:
            eventually(lambda pid=process.pid: group_is_gone(pid), "the end of the cluster", 30)

    def _logged(self, name, pattern):
        assert all(one.poll() is None for one in self.processes), (self.folder / f"{name}.log").read_text()[-3000:]
        found = re.search(pattern, (self.folder / f"{name}.log").read_text())
        return found and found[1]

    def _run(self, name, *arguments):
        java = str(find_java().home / "bin" / "java")
        room = "master.Master" if name == "master" else "worker.Worker"
        command = [sys.executable, "-c", STARTER, java, "-Xmx256m"]
        command += [*jvm_flags(), "-Dspark.authenticate=true", "-Dspark.network.crypto.enabled=true"]
        # The one part of a master that knows no secret.
        command += ["-Dspark.master.rest.enabled=false"]
        command += [f"-Dspark.authenticate.secret={SECRET}", "-cp", f"{spark_home() / 'jars'}/*"]
        environment = {
            **os.environ,
            "SPARK_HOME": str(spark_home()),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "JAVA_HOME": str(find_java().home),
            # Of all of them, executors included: they live for seconds.
            "JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData",
            **self.environment,
        }
        with (self.folder / f"{name}.log").open("w") as out:
            process = subprocess.Popen(
                [*command, f"org.apache.spark.deploy.{room}", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
            )
        self.processes.append(process)
        return process


# -- what processes say to each other -----------------------------------------------------------------------------------


class Socket(NamedTuple):
    here: int
    there: int
    state: str
    unread: int


def sockets(pid):
    """TCP sockets of a process: ports, and how many bytes have come that it has not taken."""
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(path))
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, here, there, state, queues, *rest = line.split()
            if f"socket:[{rest[4]}]" in inodes:
                ports = [int(place.rpartition(":")[2], 16) for place in (here, there)]
                yield Socket(*ports, state, int(queues.partition(":")[2], 16))


def unread(executor, session):
    """Whether a driver, by its processes' session, has sent something to an executor that this has not taken."""
    drivers = [pid for pid in pids() if (stat := read_stat(pid)) is not None and stat.session == session]
    ports = {one.here for pid in drivers for one in sockets(pid) if one.state == LISTENING}
    return any(one.unread for one in sockets(executor) if one.there in ports)
