"""An embedded server of RabbitMQ on a free port of 127.0.0.1. Its programs are Debian's: unpacked into a folder, or those of the machine."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import quote

from cdcworker.worker.devstack.ports import HOST, accepts, free_ports
from cdcworker.worker.devstack.process import EmbeddedServer, Program

USER: Final = "cdcworker"
NODE: Final = "rabbit@localhost"
START_S_MAX: Final = 240.0
"""It takes two seconds where nothing else wants the processor."""
STOP_S_MAX: Final = 20.0
ANSWER_S: Final = 1.0
HEADER: Final = b"AMQP\x00\x00\x09\x01"
INHERITED: Final = ("LANG", "LC_ALL", "TMPDIR", "TZ")
SETTINGS: Final = {
    "log.console": "true",
    "log.console.level": "warning",
    # Several of these servers may stand on one machine whose disk is small.
    "disk_free_limit.absolute": "10MB",
    "vm_memory_high_watermark.absolute": "1GB",
}


@dataclass(frozen=True, slots=True)
class Programs:
    """Where Erlang and the server are."""

    erlang: Path
    server: Path

    @property
    def binaries(self) -> Path:
        """The folder of Erlang's own programs."""
        return next(self.erlang.glob("erts-*/bin"))


def find_programs() -> Programs | None:
    """Returns the programs: in the folder that CDC_RABBITMQ names, as `make servers` has unpacked them, or the machine's; None:
    nowhere."""
    roots = (os.environ.get("CDC_RABBITMQ", ""), str(Path(sys.prefix) / "rabbitmq"), "/")
    for root in filter(None, roots):
        library = Path(root) / "usr" / "lib"
        servers = sorted(library.glob("rabbitmq/lib/rabbitmq_server-*/plugins"))
        if servers and any(library.glob("erlang/erts-*/bin/erlexec")):
            return Programs(library / "erlang", servers[-1].parent)
    return None


class EmbeddedRabbitMq(EmbeddedServer):
    """One server with its data in `directory`, and the small process in which its node is registered."""

    title: ClassVar[str] = "RabbitMQ"

    def __init__(
        self,
        programs: Programs,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        plugins: Sequence[str] = (),
    ) -> None:
        """`settings`: lines of its configuration besides those that every server has."""
        self._programs, self._directory, self._settings, self._plugins = programs, directory, settings or {}, plugins
        self.password = secrets.token_urlsafe(18)
        self.port, self._distribution, self._registry = free_ports(3)
        self._mapper: Program | None = None

    @property
    def log(self) -> Path:
        return self._directory / "rabbitmq.log"

    @property
    def url(self) -> str:
        """Its address with the login."""
        return f"amqp://{USER}:{quote(self.password)}@{HOST}:{self.port}/%2F"

    def start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._write_settings()
        binaries, environment = self._programs.binaries, self.environment()
        mapper = [str(binaries / "epmd"), "-port", str(self._registry), "-address", HOST]
        self._mapper = Program("epmd", mapper, self._directory / "epmd.log", env=environment)
        argv = [str(binaries / "erlexec"), "-noinput", "-s", "rabbit", "boot", "-boot", "start_sasl", "+W", "w"]
        # It does not spin while it waits: other programs want the processor.
        argv += ["+S", "2:2", "+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none"]
        argv += ["-syslog", "logger", "[]", "-syslog", "syslog_error_logger", "false"]
        argv += ["-kernel", "prevent_overlapping_partitions", "false"]
        argv += ["-kernel", "inet_dist_use_interface", f"{{{HOST.replace('.', ',')}}}"]
        try:
            self._mapper.wait_until(lambda: accepts(self._registry), START_S_MAX)
            self._child = Program(self.title, argv, self.log, env=environment)
            self._child.wait_until(self._answers, START_S_MAX)
        except BaseException:
            self.kill()
            raise

    def alive(self) -> bool:
        return self._child is not None and self._child.alive()

    def kill(self) -> None:
        """Ends it as a crash does."""
        for each in (self._child, self._mapper):
            if each is not None:
                each.kill()
        self._child = self._mapper = None

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(timeout_s=STOP_S_MAX)
        self.kill()

    def remove(self) -> None:
        """Stops it and removes its data."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def environment(self) -> dict[str, str]:
        """Returns the variables of Erlang's programs and of the server: everything that it writes is in its folder."""
        folder, programs = str(self._directory), self._programs
        return {
            **{name: os.environ[name] for name in INHERITED if name in os.environ},
            "ROOTDIR": str(programs.erlang),
            "BINDIR": str(programs.binaries),
            "EMU": "beam",
            "PROGNAME": "erl",
            "PATH": os.pathsep.join((str(programs.binaries), os.environ.get("PATH", os.defpath))),
            "HOME": folder,
            "ERL_LIBS": str(programs.server / "plugins"),
            "ERL_EPMD_PORT": str(self._registry),
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_MAX_ETS_TABLES": "50000",
            "RABBITMQ_HOME": str(programs.server),
            "RABBITMQ_PLUGINS_DIR": str(programs.server / "plugins"),
            "RABBITMQ_NODENAME": NODE,
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": folder,
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{folder}/none",
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
        }

    def _write_settings(self) -> None:
        settings = {
            f"listeners.tcp.{NODE.partition('@')[2]}": f"{HOST}:{self.port}",
            "default_user": USER,
            "default_pass": self.password,
            **SETTINGS,
            **self._settings,
        }
        file = self._directory / "rabbitmq.conf"
        file.touch(mode=0o600)
        file.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()), encoding="utf-8")
        (self._directory / "enabled_plugins").write_text(f"[{','.join(self._plugins)}].\n", encoding="utf-8")

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), ANSWER_S) as sock:
                sock.sendall(HEADER)
                return sock.recv(1) == b"\x01"
        except OSError:
            return False
