"""The demo's load beside workers that already run: submits both connectors, then runs until it is stopped."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.devstack.signals import interruptible
from cdcworker.worker.quickstart.connectors import SINK, Endpoints, sink_config
from cdcworker.worker.quickstart.errors import NO_WORKER
from cdcworker.worker.quickstart.flow import Demo
from cdcworker.worker.quickstart.loader import LoadGenerator
from cdcworker.worker.quickstart.monitor import ClusterMonitor
from cdcworker.worker.quickstart.postgres_shop import PostgresShop
from cdcworker.worker.quickstart.roles import WRITER, make_writer, password_of
from cdcworker.worker.quickstart.screen import Screen
from cdcworker.worker.quickstart.shop import SOURCE
from cdcworker.worker.quickstart.workload import Workload

SETTINGS = declare(
    "quickstart.settings",
    "config",
    "The load does not know where the parts are",
    "Set CDC_DEMO_WORKERS, CDC_DEMO_KAFKA, CDC_DEMO_POSTGRES and CDC_DEMO_WAREHOUSE.",
)

RATE, COLUMN_AFTER = 40.0, 200
WORKERS_TIMEOUT_S, POLL_S = 120.0, 0.5


def endpoints(env: Mapping[str, str]) -> Endpoints:
    """Returns the endpoints. CDC_DEMO_WORKERS is a comma list of URLs; CDC_DEMO_POSTGRES and CDC_DEMO_WAREHOUSE are
    libpq URLs."""
    names = ("CDC_DEMO_WORKERS", "CDC_DEMO_KAFKA", "CDC_DEMO_POSTGRES", "CDC_DEMO_WAREHOUSE")
    missing = [name for name in names if not env.get(name, "").strip()]
    if missing:
        raise CdcError(SETTINGS, f"not set: {', '.join(missing)}")
    workers, kafka, postgres, warehouse = (env[name].strip() for name in names)
    urls = tuple(url.strip().rstrip("/") for url in workers.split(",") if url.strip())
    return Endpoints(urls, kafka, PostgresShop(postgres), warehouse)


def await_leader(monitor: ClusterMonitor) -> None:
    deadline = time.monotonic() + WORKERS_TIMEOUT_S
    while not monitor.snapshot.leader:
        if time.monotonic() > deadline:
            raise CdcError(NO_WORKER, f"no worker leads within {WORKERS_TIMEOUT_S:.0f} s")
        time.sleep(POLL_S)


def run(places: Endpoints, screen: Screen) -> None:
    """Runs until it is interrupted; the tables exist before the source looks for them."""
    shop = places.shop
    loader = LoadGenerator(shop, Workload(column_after=COLUMN_AFTER), rate=RATE)
    monitor = ClusterMonitor(places)
    demo = Demo(places, loader, monitor, screen)
    try:
        monitor.start()
        screen.note(f"waiting for {', '.join(places.workers)}")
        await_leader(monitor)
        loader.prepare()
        reading, writing = password_of(shop.url), password_of(places.warehouse)
        shop.make_reader(reading)
        writer = make_writer(places.warehouse, WRITER, writing, [shop.schema])
        demo.submit({SOURCE: shop.source_config(reading), SINK: sink_config(shop.schema, writer, writing)})
        loader.start()
        demo.idle()
    finally:
        loader.finish()
        monitor.close()


def main() -> int:
    try:
        with interruptible(), Screen(time.monotonic()) as screen:
            run(endpoints(os.environ), screen)
    except KeyboardInterrupt:
        print("the load has stopped")
    except CdcError as error:
        print(f"error: {error}\n  {error.hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
