"""The worker that serves the page is killed while somebody looks, and comes back; another one goes."""

from __future__ import annotations

import re

import pytest

from tests.integration.one_worker import Worker
from tests.integration.worker.console.console_world import ConsoleWorld

pytestmark = [pytest.mark.kafka, pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def world(kafka, tmp_path_factory):
    made = ConsoleWorld(tmp_path_factory.mktemp("console"), kafka)
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_the_page_stays_says_so_and_goes_on(world, tab):
    page = tab("omar", "connectors/archive/state").page
    page.get_by_role("table", name="Tasks").get_by_text("RUNNING").wait_for()
    first = world.workers[0]
    first.kill()
    alert = page.get_by_role("alert").filter(has_text="does not answer")
    alert.wait_for()
    page.get_by_role("heading", name="archive").wait_for()
    page.get_by_role("group", name="Operate the connector").get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("group", name="Error").get_by_text("The worker does not answer").wait_for()
    page.keyboard.press("Escape")
    more = {"rest.auth.file": str(world.users), "file.connector.paths": str(world.folder), "listeners": first.url}
    again = Worker(world.folder, world.kafka.bootstrap, world.group, "w1", **more)
    again.url, world.workers[0] = first.url, again
    again.wait_ready()
    alert.wait_for(state="detached", timeout=60_000)
    page.get_by_role("table", name="Tasks").get_by_text("RUNNING").wait_for(timeout=60_000)


def test_another_worker_that_goes_is_seen(world, tab):
    page = tab("rita").page
    workers = page.get_by_role("table", name="Workers")
    workers.get_by_role("row", name=re.compile("^w2.*alive")).wait_for()
    world.workers[1].kill()
    workers.get_by_role("row", name=re.compile("^w2.*alive")).wait_for(state="detached", timeout=60_000)
