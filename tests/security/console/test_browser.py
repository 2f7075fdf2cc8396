"""Text that others have written – names, errors, values, addresses – stays text in a real browser."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from cdcworker.worker.rest.settings import ApiSettings
from cdcworker.worker.server.application import create_app
from cdcworker.worker.server.protocol import ConnectionLimits
from cdcworker.worker.server.server import RestServer

from tests.browser import Tab, chromium
from tests.unit.worker.conftest import Cluster, FakeCatalog, FakeHerder

pytestmark = [pytest.mark.browser, pytest.mark.long]

ATTACKS = (
    '<img src=x onerror="window.attacked=1">',
    "<script>window.attacked=1</script>",
    '"><svg/onload=window.attacked=1>',
    "'+(window.attacked=1)+'",
    "${window.attacked=1}",
    "{{constructor.constructor('window.attacked=1')()}}",
    "javascript:window.attacked=1",
    "../../ui/x",
    "a/b%2fc?d#e",
    "__proto__",
)
PARTS = ("state", "tables", "snapshots", "config", "offsets", "tail", "explain", "doctor", "journal", "edit")


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def server():
    cluster = Cluster()
    for number, attack in enumerate(ATTACKS):
        cluster.add(attack, {"host": attack, f"other.{attack}": attack}, labels={"team": attack})
        cluster.plan(attack, "FAILED")
        where = {attack: attack, "table": attack}
        error = {"code": attack, "kind": "config", "message": attack, "hint": attack, "where": where}
        metrics = {"table_records": {attack: number}, "table_lag_s": {attack: 1.0}, "quarantine": [attack]}
        cluster.report(attack, 0, "FAILED", error=error, metrics=metrics)
        cluster.topics[attack] = frozenset({attack})
    settings = ApiSettings(live_checks=False, warnings=ATTACKS)
    app = create_app(FakeHerder(cluster), settings=settings, catalog=FakeCatalog())
    running = RestServer(app, "127.0.0.1", 0, limits=ConnectionLimits())
    running.start()
    yield f"http://127.0.0.1:{running.port}"
    running.stop()


@pytest.fixture
def tab(browser, server):
    one = Tab(browser, server)
    one.page.on("dialog", lambda dialog: (one.complaints.append(dialog.message), dialog.dismiss()))
    one.page.goto(f"{server}/ui/")
    one.page.get_by_role("heading", name="Overview").wait_for()
    yield one
    assert one.page.evaluate("window.attacked") is None
    assert one.page.locator("img:not([src='icon.svg']), #app script, iframe, [onload], [onerror]").count() == 0
    assert one.page.evaluate("({}).polluted") is None
    assert one.complaints == []
    one.close()


def test_the_overview_shows_each_name_as_it_is(tab):
    table = tab.page.get_by_role("table", name="Connectors")
    for attack in ATTACKS:
        table.get_by_role("link", name=attack, exact=True).wait_for()
        tab.page.get_by_role("region", name="Needs attention").get_by_text(attack).first.wait_for()


@pytest.mark.parametrize("attack", ATTACKS)
def test_each_part_of_a_connector_is_reached_and_shows_text(tab, attack):
    page = tab.page
    page.get_by_role("table", name="Connectors").get_by_role("link", name=attack, exact=True).click()
    page.get_by_role("heading", name=attack, exact=True).wait_for()
    page.get_by_role("group", name="Task 0").get_by_text(attack).first.wait_for()
    for part in PARTS:
        page.goto(f"{tab.url}/ui/#/connectors/{quote(attack, safe='')}/{part}")
        page.get_by_role("heading", level=1).get_by_text(attack).wait_for()
    page.get_by_text("Needed and important").wait_for()
    assert "s3cr3t-hunter2" not in tab.text()


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_address_that_somebody_sends_does_nothing(tab, attack):
    for place in (
        attack,
        quote(attack, safe=""),
        f"errors/{quote(attack, safe='')}",
        f"schemas/{quote(attack, safe='')}",
        "%",
        "%ff",
    ):
        tab.page.goto(f"{tab.url}/ui/#/{place}")
        tab.page.get_by_role("banner").wait_for()
        tab.page.get_by_role("heading", level=1).first.wait_for()


def test_a_form_that_somebody_else_fills_is_no_danger(tab):
    page = tab.page
    page.goto(f"{tab.url}/ui/#/new")
    page.get_by_role("button", name="fake source").click()
    for attack in ATTACKS:
        page.get_by_label("host").first.fill(attack)
    page.get_by_role("button", name="Check and preview").click()
    page.get_by_role("alert").get_by_text("to correct").wait_for()


def test_no_page_of_another_site_frames_the_console(browser, server):
    context = browser.new_context()
    page = context.new_page()
    page.set_content(f"<iframe src='{server}/ui/'></iframe>")
    page.wait_for_function("frames.length === 1")
    page.wait_for_load_state("networkidle")
    assert all("Overview" not in frame.content() for frame in page.frames[1:])
    context.close()


def test_the_policy_holds_in_this_browser(tab, until):
    """What an attacker would try if text became markup somewhere after all."""
    refused = tab.page.evaluate(
        """() => new Promise((resolve) => setTimeout(() => {
          // A task of the page's own: what a debugger evaluates may do more.
          const tried = [];
          const attempt = (name, work) => { try { work(); tried.push(name); } catch { /* refused */ } };
          attempt("markup", () => { document.body.innerHTML = "<b>x</b>"; });
          attempt("code", () => { eval("1"); });
          attempt("function", () => { new Function("return 1")(); });
          attempt("address", () => { document.createElement("script").src = "https://evil.example/x.js"; });
          resolve(tried);
        }))"""
    )
    assert refused == []
    tab.complaints.clear()
    assert tab.page.evaluate("fetch('https://evil.example/').then(() => 'sent', () => 'refused')") == "refused"
    until(lambda: tab.page.title() and any(text.startswith("CSP connect-src") for text in tab.complaints))
    tab.complaints.clear()
