"""`cdcworker quickstart`: the embedded stack with a live load, a killed leader and a proof."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.signals import interruptible

if TYPE_CHECKING:
    from cdcworker.worker.devstack.stack import DevStack
    from cdcworker.worker.quickstart.connectors import Endpoints
    from cdcworker.worker.quickstart.flow import Demo
    from cdcworker.worker.quickstart.loader import LoadGenerator
    from cdcworker.worker.quickstart.screen import Screen
    from cdcworker.worker.quickstart.shop import Shop

ONCE_TRANSACTIONS = 2000
ONCE_RATE = 120.0
LIVE_RATE = 40.0
KILL_AT = 0.5
"""The share of the fixed load after which the leader is killed."""
EXIT_DIFFERENT = 1
EXIT_INTERRUPTED = 130
"""A fixed load that was interrupted has proven nothing; a live load ends in no other way."""


@click.command("quickstart")
@click.option(
    "--source",
    default="postgres",
    show_default=True,
    type=click.Choice(["postgres", "mysql"]),
    help="Whose database the shop is in; mysql is a MariaDB.",
)
@click.option("--once", is_flag=True, help="A fixed load; ends by itself, exit code 0 only if every table is equal.")
@click.option("--sabotage", is_flag=True, help="Plant one wrong row in the warehouse: the proof must find it.")
@click.option("--seconds", default=30, show_default=True, type=click.IntRange(5), help="How long the live load runs.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(2, 8), help="How many workers.")
@click.option("--dir", "folder", type=click.Path(file_okay=False, path_type=Path), help="Folder for the data (empty).")
@click.option("--keep", is_flag=True, help="Leave the folder with data and logs at the end.")
def quickstart(
    source: str, once: bool, sabotage: bool, seconds: int, workers: int, folder: Path | None, keep: bool
) -> None:
    """See it work: a database, a Kafka, workers, a live shop, a killed leader, and the proof that nothing is lost.

    Ctrl-C drains and removes everything that was started.
    """
    from cdcworker.worker.devstack.scratch import scratch_folder
    from cdcworker.worker.quickstart.screen import Screen

    try:
        with (
            interruptible(),
            scratch_folder(folder, keep=keep) as directory,
            Screen(time.monotonic()) as screen,
        ):
            if keep:
                screen.note(f"data and logs stay in {directory}")
            code = _run(screen, directory, source, workers, sabotage, None if once else seconds)
    except KeyboardInterrupt:
        click.echo("stopped, and removed everything it started")
        code = EXIT_INTERRUPTED if once else 0
    sys.exit(code)


def _run(screen: Screen, directory: Path, source: str, workers: int, sabotage: bool, seconds: int | None) -> int:
    """Runs the demo and returns the exit code. `seconds` None is the fixed load."""
    from cdcworker.worker.devstack.stack import DevStack
    from cdcworker.worker.quickstart.loader import LoadGenerator
    from cdcworker.worker.quickstart.workload import Workload

    of_mysql = source == "mysql"
    screen.note(f"starting PostgreSQL, {'MariaDB, ' if of_mysql else ''}Kafka and the workers")
    with DevStack(directory, progress=screen.note, more=["mysql"] if of_mysql else []) as stack:
        for _ in range(workers):
            stack.start_worker()
        once, shop = seconds is None, _shop(stack)
        workload = Workload(dialect=shop.dialect)
        if not once:
            workload.column_after = int(LIVE_RATE * 5)
        loader = LoadGenerator(
            shop,
            workload,
            rate=ONCE_RATE if once else LIVE_RATE,
            transactions=ONCE_TRANSACTIONS if once else None,
        )
        try:
            loader.prepare()
            stack.await_workers()
            return _demo(stack, shop, loader, screen, sabotage, seconds)
        except CdcError:
            screen.note(stack.log_excerpt())
            raise
        finally:
            loader.finish()


def _shop(stack: DevStack) -> Shop:
    from cdcworker.worker.quickstart.mariadb_shop import MariaDbShop
    from cdcworker.worker.quickstart.postgres_shop import PostgresShop

    addresses = stack.endpoints()
    return PostgresShop(addresses["postgres"]) if "mysql" not in stack.further else MariaDbShop(addresses["mysql"])


def _demo(
    stack: DevStack, shop: Shop, loader: LoadGenerator, screen: Screen, sabotage: bool, seconds: int | None
) -> int:
    from cdcworker.worker.devstack.further_servers import MYSQL_PASSWORD
    from cdcworker.worker.devstack.stack import SOURCE_PASSWORD, WAREHOUSE_PASSWORD
    from cdcworker.worker.quickstart import flow
    from cdcworker.worker.quickstart.connectors import SINK, Endpoints, sink_config
    from cdcworker.worker.quickstart.monitor import ClusterMonitor
    from cdcworker.worker.quickstart.roles import WRITER, make_writer
    from cdcworker.worker.quickstart.shop import SOURCE

    addresses, reading = stack.endpoints(), SOURCE_PASSWORD if "mysql" not in stack.further else MYSQL_PASSWORD
    endpoints = Endpoints(tuple(addresses["workers"]), addresses["kafka"], shop, addresses["warehouse"])
    screen.note(how_to_look(endpoints))
    shop.make_reader(stack.secrets[reading])
    writer = make_writer(endpoints.warehouse, WRITER, stack.secrets[WAREHOUSE_PASSWORD], [shop.schema])
    monitor = ClusterMonitor(endpoints)
    monitor.start()
    try:
        demo = flow.Demo(endpoints, loader, monitor, screen, stack.check)
        demo.submit(
            {
                SOURCE: shop.source_config(f"${{env:{reading}}}"),
                SINK: sink_config(shop.schema, writer, f"${{env:{WAREHOUSE_PASSWORD}}}"),
            }
        )
        return _course(demo, stack, sabotage, seconds)
    finally:
        monitor.close()


def _course(demo: Demo, stack: DevStack, sabotage: bool, seconds: int | None) -> int:
    from cdcworker.worker.quickstart import flow

    loader, workload = demo.loader, demo.loader.workload
    if seconds is None:
        kill_at = int(ONCE_TRANSACTIONS * KILL_AT)
        loader.pause_at(kill_at)
        demo.run_load()
        demo.wait_for_load(transactions=kill_at)
        demo.kill_leader(stack.kill_worker)
        demo.wait_for_load(transactions=ONCE_TRANSACTIONS)
    else:
        demo.run_load()
        demo.wait_for_load(seconds=seconds / 2)
        demo.kill_leader(stack.kill_worker)
        demo.wait_for_load(seconds=seconds / 2)
    loader.finish()
    places = demo.endpoints
    plant = partial(flow.plant_difference, places.warehouse, places.shop.schema)
    results = demo.prove(plant if sabotage else None)
    took = ", ".join(f"{name} {value:.1f} s" for name, value in {**stack.timings_s, **demo.timings_s}.items())
    demo.screen.note(f"times: {took}")
    text = flow.summary(results, workload.operations, workload.specials)
    demo.screen.note(f"{workload.transactions:,} transactions, {workload.changes:,} changes\n{text}")
    equal = all(result.equal for result in results)
    if seconds is not None:
        try:
            demo.screen.note("everything keeps running for you to look at; Ctrl-C drains and removes it")
            demo.idle()
        except KeyboardInterrupt:
            if equal:
                raise
    return 0 if equal else EXIT_DIFFERENT


def how_to_look(endpoints: Endpoints) -> str:
    """Returns commands to try in another terminal."""
    from cdcworker.worker.quickstart.shop import SOURCE

    lines = [f"worker      curl -s {url}/v1/cluster" for url in endpoints.workers]
    lines.append(f"connectors  curl -s {endpoints.workers[0]}/connectors/{SOURCE}/status")
    lines.append(f"schemas     curl -s {endpoints.workers[0]}/subjects")
    lines.append(f"Kafka       {endpoints.kafka}, topics {', '.join(endpoints.topics)}")
    lines.append(f"source      {endpoints.shop.url}")
    lines.append(f"warehouse   {endpoints.warehouse}")
    return "\n".join(lines)
