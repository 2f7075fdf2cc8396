"""The console over a large cluster that changes all the time, in tabs that nobody sees, and while the worker is away."""

from __future__ import annotations

import itertools
import json
import re
import time
from dataclasses import replace

import pytest
from cdcworker.coordinator.model import Assignment
from cdcworker.worker.rest.settings import ApiSettings
from cdcworker.worker.server.application import create_app
from cdcworker.worker.server.protocol import ConnectionLimits
from cdcworker.worker.server.server import RestServer

from tests.browser import Tab, chromium
from tests.unit.worker.conftest import Cluster, FakeCatalog, FakeHerder

pytestmark = [pytest.mark.browser, pytest.mark.long]

WORKER = "follower:8083"
CONNECTORS = 1_200
SHOWN = 200
HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


class Served:
    """A worker's REST server over a cluster in memory."""

    def __init__(self, connectors: int) -> None:
        self.cluster = Cluster()
        self.names = [f"c{number:04d}" for number in range(connectors)]
        for name in self.names:
            self.add(name, 1.0)
        self.app = create_app(FakeHerder(self.cluster), settings=ApiSettings(live_checks=False), catalog=FakeCatalog())
        self.server = RestServer(self.app, "127.0.0.1", 0, limits=ConnectionLimits())
        self.server.start()
        self.url = f"http://127.0.0.1:{self.server.port}"

    def add(self, name: str, lag_s: float) -> None:
        """A connector whose task runs, beside all others of the same worker."""
        self.cluster.add(name)
        held = self.cluster.state.assignments.get(WORKER, Assignment("", ())).tasks
        self.cluster.plan(name, None, worker=WORKER)
        assignment = self.cluster.state.assignments[WORKER]
        together = replace(assignment, tasks=(*held, *assignment.tasks))
        self.cluster.state = replace(self.cluster.state, assignments={WORKER: together})
        self.cluster.report(name, 0, "RUNNING", WORKER, metrics={"lag_s": lag_s, "records": 10})

    @property
    def listeners(self) -> int:
        return len(self.app.state.api.event_feed._listeners)


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def many():
    made = Served(CONNECTORS)
    yield made
    made.server.stop()


@pytest.fixture
def few():
    made = Served(2)
    yield made
    made.server.stop()


@pytest.fixture
def opened(browser):
    """`opened(served, "journal")`: a page, and what it must not do."""
    tabs = []

    def make(served, place=""):
        tab = Tab(browser, served.url)
        tabs.append(tab)
        tab.page.goto(f"{served.url}/ui/#/{place}")
        tab.page.get_by_role("banner").wait_for()
        return tab.page

    yield make
    complaints = [text for tab in tabs for text in tab.complaints]
    for tab in tabs:
        tab.close()
    assert complaints == []


def wait(page, fulfilled, what):
    """The page's own loop runs meanwhile."""
    deadline = time.monotonic() + 30.0
    while not fulfilled():
        assert time.monotonic() < deadline, what
        page.wait_for_timeout(20)


# -- large clusters ---------------------------------------------------------------------------------------------------


def test_of_very_many_rows_the_first_are_drawn_until_one_asks_for_more(many, opened):
    page = opened(many)
    table = page.get_by_role("table", name="Connectors")
    table.get_by_role("row").first.wait_for()
    assert table.locator("tbody tr").count() == SHOWN
    page.get_by_text(f"{SHOWN} of 1,200 rows are shown").wait_for()
    page.get_by_label(re.compile("^Filter by name")).fill(many.names[-1])
    table.get_by_role("link", name=many.names[-1], exact=True).wait_for()
    assert table.locator("tbody tr").count() == 1
    page.get_by_label(re.compile("^Filter by name")).fill("")
    page.get_by_role("button", name="Show more").click()
    page.get_by_text("1,000 of 1,200 rows are shown").wait_for()
    assert table.locator("tbody tr").count() == 5 * SHOWN
    workers = page.get_by_role("table", name="Workers")
    assert workers.locator("a").count() <= 100


def test_samples_are_bounded_however_often_a_cluster_is_read(few, opened):
    page = opened(few)
    page.get_by_role("table", name="Connectors").wait_for()
    times = page.evaluate(
        """async () => {
          const { historyOf, refresh } = await import("./live.js");
          for (const end = Date.now() + 60000; Date.now() < end && historyOf("c0000")[0].length < 3;) {
            refresh();
            await new Promise((resolve) => setTimeout(resolve, 20));
          }
          return historyOf("c0000")[0];
        }"""
    )
    assert len(times) >= 3
    assert all(later - earlier > 2.49 for earlier, later in itertools.pairwise(times))


def test_a_connector_that_comes_later_is_added_to_the_newest_values(few, opened):
    page = opened(few)
    page.get_by_role("img", name=re.compile("^Highest lag over the last minutes: now 1.0 s, at most 1.0 s")).wait_for()
    few.add("later", 9.0)
    page.get_by_role("img", name=re.compile("^Highest lag over the last minutes: now 9.0 s, at most 9.0 s")).wait_for()


# -- tabs that nobody sees --------------------------------------------------------------------------------------------


def test_a_hidden_tab_follows_no_events_and_is_told_of_them_when_it_is_seen_again(few, opened):
    page = opened(few, "journal")
    page.get_by_text("Live.").wait_for()
    assert few.listeners == 1
    page.evaluate(HIDE, True)
    wait(page, lambda: few.listeners == 0, "the stream's end")
    few.cluster.report("c0001", 0, "FAILED")
    page.evaluate(HIDE, False)
    page.get_by_role("table", name="Events").get_by_text("FAILED").first.wait_for()
    assert few.listeners == 1


def test_a_page_that_is_closed_leaves_no_stream(few, browser):
    tab = Tab(browser, few.url)
    tab.page.goto(f"{few.url}/ui/#/journal")
    tab.page.get_by_text("Live.").wait_for()
    assert few.listeners == 1
    tab.page.goto("about:blank")
    wait(tab.page, lambda: few.listeners == 0, "the stream's end")
    tab.close()


# -- a worker that is away, and answers that come late ----------------------------------------------------------------


def test_who_comes_while_the_worker_starts_is_not_asked_to_log_in(few, browser):
    tab = Tab(browser, few.url)
    page = tab.page
    refused = []

    def starting(route):
        refused.append(route.request.url)
        route.fulfill(status=503, content_type="application/json", body='{"message": "The worker starts"}')

    page.route("**/v1/caller", starting)
    page.goto(f"{few.url}/ui/")
    page.get_by_text("The worker starts").wait_for()
    assert page.get_by_role("button", name="Log in").count() == 0
    page.unroute("**/v1/caller")
    page.get_by_role("heading", name="Overview").wait_for()
    tab.close()


def test_what_one_user_has_seen_is_gone_for_the_next_one(few, opened):
    page = opened(few, "journal")
    page.get_by_text("Live.").wait_for()
    few.cluster.report("c0001", 0, "FAILED")
    page.get_by_role("table", name="Events").get_by_text("FAILED").first.wait_for()
    page.route("**/v1/cluster", lambda route: route.fulfill(status=401, body="{}"))
    page.get_by_label("Token", exact=True).wait_for()
    page.unroute("**/v1/cluster")
    page.get_by_label("Token", exact=True).fill("another")
    page.get_by_role("button", name="Log in").click()
    page.get_by_text("Live.").wait_for()
    page.get_by_text("Nothing has happened.").wait_for()


def test_a_code_is_not_called_unknown_while_the_worker_is_away(few, opened):
    page = opened(few)
    page.route("**/errors.json", lambda route: route.abort())
    page.goto(f"{few.url}/ui/#/errors/postgres.slot_lost")
    page.get_by_text("The worker does not answer. Load the page again.").wait_for()
    page.unroute("**/errors.json")


def test_a_plan_of_a_config_that_was_changed_meanwhile_is_not_shown(few, opened):
    page = opened(few, "connectors/c0000/edit")
    page.get_by_label(re.compile("^host")).fill("one")
    held = []
    page.route("**/connectors/c0000/config?*dry_run*", lambda route: held.append(route))
    page.get_by_role("button", name="Check and preview").click()
    wait(page, lambda: held, "the dry run")
    page.get_by_label(re.compile("^host")).fill("two")
    with page.expect_response(lambda answer: "dry_run" in answer.url):
        held.pop().continue_()
    page.wait_for_function(
        "new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => resolve(true))))"
    )
    assert page.get_by_text("What will be done").count() == 0
    assert page.get_by_role("button", name="Save").count() == 0
    page.unroute("**/connectors/c0000/config?*dry_run*")
    page.get_by_role("button", name="Check and preview").click()
    page.get_by_text("What will be done").wait_for()


def test_two_clicks_are_one_snapshot(few, opened):
    page = opened(few, "connectors/c0000/snapshots")
    page.get_by_label(re.compile("^Tables")).fill("public.orders")
    asked = []

    def begun(route):
        if route.request.method == "POST":
            asked.append(route)
        else:
            route.fallback()

    page.route("**/v1/connectors/c0000/snapshots", begun)
    page.get_by_role("button", name="Begin").dblclick()
    wait(page, lambda: asked, "the request")
    assert page.get_by_role("button", name="Begin").is_disabled()
    asked[0].fulfill(status=202, content_type="application/json", body="{}")
    page.get_by_text("The snapshot begins").wait_for()
    assert len(asked) == 1


def test_what_a_deletion_could_not_drop_stays_to_be_read(few, opened):
    page = opened(few, "connectors/c0000/state")
    answer = {"refused": [{"kind": "slot", "name": "s", "error": {"message": "it is in use"}}], "drop": []}

    def deleted(route):
        if route.request.method == "DELETE":
            route.fulfill(status=200, content_type="application/json", body=json.dumps(answer))
        else:
            route.fallback()

    page.route("**/connectors/c0000?*", deleted)
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_label(re.compile("^Type c0000")).fill("c0000")
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("alert").get_by_text("Not dropped: slot s: it is in use").wait_for()


def test_a_verb_that_fails_behind_a_closed_dialog_is_told(few, opened):
    page = opened(few, "connectors/c0000/state")
    held = []
    page.route("**/connectors/c0000/pause?*", lambda route: held.append(route))
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Pause", exact=True).click()
    wait(page, lambda: held, "the request")
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    held.pop().fulfill(status=409, content_type="application/json", body='{"message": "a rebalance is under way"}')
    page.get_by_role("alert").get_by_text("Pause c0000: a rebalance is under way").wait_for()
