"""`cdcworker start`: runs one worker until it is stopped."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import click


@click.command("start")
@click.option(
    "--config",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="worker.properties or worker.yaml, with Kafka Connect's names. CDC_… environment variables override it.",
)
def start(path: Path | None) -> None:
    """Run one worker. SIGTERM or Ctrl-C releases its tasks and ends it; a second one ends it at once."""
    import logging

    from cdcworker.connectors.config.installed_plugins import ALLOWED, VARIABLE
    from cdcworker.worker.config.task_environment import leave
    from cdcworker.worker.config.worker_properties import FILES_UMASK, load
    from cdcworker.worker.logs.setup import bind, keep_recent, set_up

    config, warnings = load(path)
    _leave_no_core()
    # Task processes inherit it.
    os.environ["CDC_LOG_LEVEL"] = config.values["log.level"]
    os.environ[VARIABLE] = ",".join(config.values[ALLOWED])
    leave(config)
    os.umask(int(config.values[FILES_UMASK], 8))
    bind(worker=config.worker_id)
    set_up(config.values["log.level"], config.values["log.format"], sys.stderr)
    keep_recent()
    for warning in warnings:
        logging.getLogger(__name__).warning("%s", warning)

    # Imported modules live as long as the process: the garbage collector need not look at them.
    gc.disable()
    # httpx goes on without its own command line, which imports a terminal's library.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    from cdcworker.worker.app import run_worker

    gc.freeze()
    gc.enable()
    run_worker(config)


def _leave_no_core() -> None:
    """Limits core dumps to one byte, for the tasks too: a dump of the memory would hold every secret.

    With a limit of 0 a core_pattern that begins with a pipe gets dumps all the same.
    """
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    if most == resource.RLIM_INFINITY or most >= 1:
        resource.setrlimit(resource.RLIMIT_CORE, (1, most))
