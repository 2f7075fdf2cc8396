"""Servers that stand beside PostgreSQL and Kafka where they are asked for, each by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Protocol

from cdcworker.worker.devstack import mariadb, nats, opensearch, rabbitmq

SOURCE_DATABASE: Final = "shop"
MYSQL_PASSWORD, NATS_PASSWORD, RABBITMQ_PASSWORD = "MYSQL_PASSWORD", "NATS_PASSWORD", "RABBITMQ_PASSWORD"
Progress = Callable[[str], None]


class Server(Protocol):
    """What the stack does with a server that runs."""

    title: ClassVar[str]

    @property
    def log(self) -> Path: ...

    def alive(self) -> bool:
        """Returns whether its process is there."""

    def kill(self) -> None:
        """Ends it at once."""


@dataclass(frozen=True, slots=True)
class FurtherServer:
    """A server that answers: its address with the login, and variables with its secrets for `${env:…}` in configs."""

    server: Server
    url: str
    secrets: Mapping[str, str]


def _mysql(directory: Path, progress: Progress) -> FurtherServer:
    server = mariadb.EmbeddedMariaDb(mariadb.programs(progress), directory / "mariadb", mariadb.LOGGING)
    server.start()
    try:
        server.ask(f"create database {SOURCE_DATABASE}")
    except BaseException:
        server.kill()
        raise
    progress(f"MariaDB answers at 127.0.0.1:{server.port}")
    return FurtherServer(server, server.url(SOURCE_DATABASE), {MYSQL_PASSWORD: server.password})


def _nats(directory: Path, progress: Progress) -> FurtherServer | None:
    program = nats.find_program()
    if program is None:
        progress("NATS is left out: there is no nats-server on the path, and CDC_NATS names none")
        return None
    server = nats.EmbeddedNats(program, directory / "nats")
    server.start()
    progress(f"NATS answers at 127.0.0.1:{server.port}")
    return FurtherServer(server, server.url, {NATS_PASSWORD: server.password})


def _opensearch(directory: Path, progress: Progress) -> FurtherServer:
    server = opensearch.EmbeddedOpenSearch(directory / "opensearch", progress=progress)
    server.start()
    progress(f"OpenSearch answers at {server.url}")
    return FurtherServer(server, server.url, {})


def _rabbitmq(directory: Path, progress: Progress) -> FurtherServer | None:
    programs = rabbitmq.find_programs()
    if programs is None:
        progress("RabbitMQ is left out: the machine does not have it (on Debian: apt install rabbitmq-server)")
        return None
    server = rabbitmq.EmbeddedRabbitMq(programs, directory / "rabbitmq")
    server.start()
    progress(f"RabbitMQ answers at 127.0.0.1:{server.port}")
    return FurtherServer(server, server.url, {RABBITMQ_PASSWORD: server.password})


STARTS: Final[Mapping[str, Callable[[Path, Progress], FurtherServer | None]]] = {
    "mysql": _mysql,
    "nats": _nats,
    "opensearch": _opensearch,
    "rabbitmq": _rabbitmq,
}
"""What starts each of them; it returns None, and says so, for a server whose program the machine does not have."""
