"""`cdcworker sandbox`: a disposable cluster with its own databases and Kafka, for trying things out."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
from cdcworker.worker.devstack.signals import interruptible

CHECK_S = 1.0


@click.command("sandbox")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(0, 20), help="How many workers.")
@click.option(
    "--endpoints",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that is written (JSON) once all parts answer, and removed at the end.",
)
@click.option(
    "--with",
    "more",
    type=click.Choice(["mysql", "nats", "opensearch", "rabbitmq"]),
    multiple=True,
    help="A further server: mysql is a MariaDB with binary log, nats a NATS with JetStream, opensearch a node of OpenSearch, rabbitmq a"
    " RabbitMQ.",
)
@click.option("--dir", "folder", type=click.Path(file_okay=False, path_type=Path), help="Folder for the data (empty).")
def sandbox(workers: int, endpoints: Path, more: tuple[str, ...], folder: Path | None) -> None:
    """Start PostgreSQL (databases shop and warehouse), Kafka and workers; stay until Ctrl-C, then remove everything.

    With mysql a MariaDB server (database shop) stands beside them, with nats a server of NATS where the machine has nats-server, with
    opensearch a server of OpenSearch (44 MB of Java libraries, fetched once), with rabbitmq a server of RabbitMQ where the machine has it.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        with interruptible():
            _run(workers, endpoints, more, folder)
    except KeyboardInterrupt:
        click.echo("stopped, and removed everything it started", err=True)


def _run(workers: int, endpoints: Path, more: Sequence[str], folder: Path | None) -> None:
    from cdcworker.worker.devstack.scratch import scratch_folder
    from cdcworker.worker.devstack.stack import DevStack, write_endpoints

    def say(line: str) -> None:
        click.echo(line, err=True)

    endpoints.unlink(missing_ok=True)
    try:
        with (
            scratch_folder(folder) as directory,
            DevStack(directory, progress=say, more=list(dict.fromkeys(more))) as stack,
        ):
            for _ in range(workers):
                stack.start_worker()
            stack.await_workers()
            write_endpoints(endpoints, stack.endpoints())
            say(f"ready: {endpoints} (Ctrl-C stops and removes everything)")
            gone: set[str] = set()
            while True:
                time.sleep(CHECK_S)
                stack.check()
                for worker in stack.workers:
                    if not worker.child.alive() and worker.id not in gone:
                        gone.add(worker.id)
                        say(f"{worker.id} has ended with exit code {worker.child.returncode}")
    finally:
        endpoints.unlink(missing_ok=True)
