"""An embedded server of NATS with JetStream on a free port of 127.0.0.1. Its program is Go's: one that the machine has."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import quote

from cdcworker.worker.devstack.ports import HOST, free_ports
from cdcworker.worker.devstack.process import EmbeddedServer, Program

USER: Final = "cdcworker"
START_S_MAX: Final = 20.0
STOP_S_MAX: Final = 5.0
ANSWER_S: Final = 1.0


def find_program() -> Path | None:
    """Returns where the server's program is: as CDC_NATS says, as `make servers` has built it, or on the path; None: nowhere."""
    places = (
        os.environ.get("CDC_NATS", ""),
        str(Path(sys.prefix) / "nats" / "nats-server"),
        shutil.which("nats-server") or "",
    )
    return next((Path(place) for place in places if place and Path(place).is_file()), None)


class EmbeddedNats(EmbeddedServer):
    """One server with its data in `directory`."""

    title: ClassVar[str] = "NATS"

    def __init__(self, program: Path, directory: Path, *, rights: str = "", syncs: bool = False) -> None:
        """`rights`: lines of its configuration in the place of the one user. `syncs`: what it has answered outlives the machine."""
        self._program, self._directory, self._rights, self._syncs = program, directory, rights, syncs
        self.password = secrets.token_urlsafe(18)
        (self.port,) = free_ports(1)

    @property
    def log(self) -> Path:
        return self._directory / "nats.log"

    @property
    def url(self) -> str:
        """Its address with the login."""
        return f"nats://{USER}:{quote(self.password)}@{HOST}:{self.port}"

    def start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        login = f'authorization {{ users: [{{ user: "{USER}", password: "{self.password}" }}] }}'
        syncs = ", sync_interval: always" if self._syncs else ""
        file = self._directory / "server.conf"
        file.touch(mode=0o600)
        file.write_text(
            f"listen: {HOST}:{self.port}\n"
            f'jetstream {{ store_dir: "{self._directory}"{syncs} }}\n'
            f"{self._rights or login}\n"
        )
        self._child = Program(self.title, [str(self._program), "-c", str(file)], self.log)
        try:
            self._child.wait_until(self._answers, START_S_MAX)
        except BaseException:
            self._child.kill()
            raise

    def alive(self) -> bool:
        return self._child is not None and self._child.alive()

    def kill(self) -> None:
        """Ends it as a crash does."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(timeout_s=STOP_S_MAX)
            self._child = None

    def remove(self) -> None:
        """Stops it and removes its data."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), ANSWER_S) as sock:
                return sock.recv(4) == b"INFO"
        except OSError:
            return False
