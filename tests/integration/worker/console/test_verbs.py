"""What one can do in the console, by the users who may and those who may not, in a real browser over real workers."""

from __future__ import annotations

import re

import pytest

from tests.browser import Tab
from tests.integration.worker.console.console_world import USERS, ConsoleWorld, token_of, write_users

pytestmark = [
    pytest.mark.kafka, pytest.mark.postgres, pytest.mark.spark, pytest.mark.browser, pytest.mark.long,
    pytest.mark.timeout(600),
]  # fmt: skip

VERBS = ("Pause", "Restart", "Stop", "Delete")


@pytest.fixture(scope="module")
def world(kafka, postgres, tmp_path_factory):
    made = ConsoleWorld(tmp_path_factory.mktemp("console"), kafka, postgres)
    try:
        made.start()
        made.start_shop()
        yield made
    finally:
        made.close()


def verb(page, name):
    """The button of the connector itself."""
    return page.get_by_role("group", name="Operate the connector").get_by_role("button", name=name, exact=True)


def confirm(page, name):
    page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()
    page.get_by_role("dialog").wait_for(state="detached")


# -- life cycle -------------------------------------------------------------------------------------------------------


def test_an_operator_pauses_resumes_stops_and_restarts(world, tab):
    page = tab("omar", "connectors/archive/state").page
    for name, state in (("Pause", "PAUSED"), ("Resume", "RUNNING"), ("Stop", "STOPPED"), ("Resume", "RUNNING")):
        verb(page, name).click()
        confirm(page, name)
        page.locator(".title").get_by_text(state).wait_for()
        assert world.state("archive") == state
    page.get_by_role("table", name="Tasks").get_by_text("RUNNING").wait_for()
    before = len(world.workers[0].starts("archive-0") + world.workers[1].starts("archive-0"))
    verb(page, "Restart").click()
    confirm(page, "Restart")
    page.get_by_text("archive is being restarted").wait_for()
    world.worker.wait(
        lambda: len(world.workers[0].starts("archive-0") + world.workers[1].starts("archive-0")) > before, "a start"
    )


def test_one_task_is_restarted(world, tab):
    page = tab("omar", "connectors/broken/state").page
    epoch = world.task("broken")["metrics"].get("failures")
    page.get_by_role("table", name="Tasks").get_by_role("button", name="Restart").click()
    confirm(page, "Restart")
    page.get_by_text("Task 0 is being restarted").wait_for()
    world.worker.wait(lambda: world.task("broken")["metrics"].get("failures") != epoch, "another failure")


def test_who_does_not_confirm_changes_nothing_and_is_back_where_it_was(world, tab):
    """By the keyboard alone."""
    page = tab("ada", "connectors/archive/state").page
    verb(page, "Stop").focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog", name="Stop archive").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    assert page.evaluate("document.activeElement.textContent") == "Stop"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Delete"
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Delete archive")
    dialog.get_by_text("Tasks that end: 1.").wait_for()
    assert dialog.get_by_role("button", name="Delete").is_disabled()
    page.keyboard.press("Escape")
    assert world.state("archive") == "RUNNING"


# -- creation, change and deletion ------------------------------------------------------------------------------------


def test_a_connector_is_made_by_a_form_that_says_what_is_wrong_before_it_is_sent(world, tab):
    page = tab("ada", "new").page
    page.get_by_role("button", name=re.compile("^file source")).click()
    page.get_by_label(re.compile("^Connector name")).fill("made")
    page.get_by_label(re.compile("^file")).fill("/etc/passwd")
    page.get_by_label(re.compile("^Tasks max")).fill("many")
    field = page.locator(".field", has=page.get_by_label(re.compile("^Tasks max")))
    field.locator("p.wrong").wait_for()
    assert page.get_by_label(re.compile("^Tasks max")).get_attribute("aria-invalid") == "true"
    page.get_by_role("button", name="Check and preview").click()
    page.get_by_role("alert").get_by_text("to correct").wait_for()
    page.get_by_label(re.compile("^Tasks max")).fill("1")
    page.get_by_label(re.compile("^file")).fill(str(world.folder / "made.txt"))
    page.get_by_label(re.compile("^topic")).first.fill(world.topic("made"))
    page.get_by_role("alert").get_by_text("to correct").wait_for(state="detached")
    page.get_by_role("button", name="Check and preview").click()
    page.get_by_text("The connector is created").wait_for()
    assert world.client.get("/connectors/made").status_code == 404
    page.get_by_role("button", name="Create").click()
    page.get_by_role("heading", name="made", exact=True).wait_for()
    assert world.client.get("/connectors/made").status_code == 200
    # It is changed, and then it goes.
    page.get_by_role("link", name="Config").click()
    page.get_by_role("link", name="Edit").click()
    page.get_by_label("Find a key").fill("batch.size")
    page.get_by_label(re.compile("^batch.size")).fill("77")
    page.get_by_role("button", name="Check and preview").click()
    page.get_by_role("table", name="Changed keys").get_by_text("77").wait_for()
    page.get_by_role("button", name="Save").click()
    page.get_by_role("heading", name="made", exact=True).wait_for()
    assert world.client.get("/connectors/made/config").json()["batch.size"] == "77"
    verb(page, "Delete").click()
    page.get_by_role("dialog").get_by_text("Tasks that end").wait_for()
    page.get_by_label(re.compile("^Type made")).fill("made")
    confirm(page, "Delete")
    page.get_by_role("heading", name="Overview").wait_for()
    world.worker.wait(lambda: world.client.get("/connectors/made").status_code == 404, "the deletion")


def test_a_change_that_somebody_else_was_faster_with_is_refused(world, tab):
    page = tab("ada", "connectors/archive/edit").page
    page.get_by_label(re.compile("^Tasks max")).fill("1")
    page.get_by_role("button", name="Check and preview").click()
    page.get_by_text("What will be done").wait_for()
    changed = world.client.patch("/connectors/archive/config", json={"task.restart.backoff.ms": "77"})
    assert changed.status_code == 200, changed.text
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Somebody has changed the config meanwhile").wait_for()


def test_the_whole_config_as_json(world, tab):
    page = tab("ada", "connectors/archive/edit").page
    page.get_by_text("As JSON", exact=True).click()
    text = page.get_by_label("The whole config")
    text.fill(text.input_value().replace("{", '{"task.restart.backoff.max.ms": "99",', 1))
    page.get_by_role("button", name="Take over into the form").click()
    page.get_by_role("button", name="Check and preview").click()
    page.get_by_role("table", name="Changed keys").get_by_text("99").wait_for()


# -- snapshots, offsets, letters --------------------------------------------------------------------------------------


def test_a_snapshot_begins_is_paused_resumed_and_cancelled(world, tab):
    page = tab("omar", "connectors/shop/snapshots").page
    page.get_by_label(re.compile("^Tables")).fill("public.orders")
    page.get_by_label("Rows a second, at most").fill("20")
    page.get_by_role("button", name="Begin").click()
    row = page.get_by_role("table", name="Snapshots").get_by_role("row", name=re.compile("request"))
    row.get_by_text("RUNNING").wait_for()
    for name, state in (("Pause", "PAUSED"), ("Resume", "RUNNING"), ("Cancel", "CANCELLED")):
        row.get_by_role("button", name=name).click()
        confirm(page, name)
        row.get_by_text(state).wait_for(timeout=60_000)


def test_a_wrong_snapshot_is_refused_with_words(world, tab):
    page = tab("omar", "connectors/shop/snapshots").page
    page.get_by_label(re.compile("^Tables")).fill("public.(orders")
    page.get_by_role("button", name="Begin").click()
    page.get_by_role("group", name="Error").wait_for()


def test_dead_letters_are_tried_again(world, tab):
    page = tab("omar", "connectors/warehouse/letters").page
    page.get_by_text("1 dead letter in all").wait_for()
    assert "no Avro at all" not in page.content()
    page.get_by_role("button", name="Redrive").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("would be applied again").wait_for(timeout=60_000)
    dialog.get_by_role("button", name="Redrive").click()
    dialog.wait_for(state="detached", timeout=60_000)
    page.get_by_text("1 failed").wait_for()


def test_the_offsets_of_a_stopped_connector_are_reset(world, tab):
    (world.folder / "lines.txt").write_text("one\ntwo\n")
    world.worker.wait(lambda: world.client.get("/connectors/archive/offsets").json()["offsets"], "an offset")
    page = tab("ada", "connectors/archive/offsets").page
    verb(page, "Stop").click()
    confirm(page, "Stop")
    page.get_by_role("button", name="Reset").click()
    page.get_by_text("1 offset would be forgotten").wait_for()
    page.get_by_label(re.compile("^Type archive")).fill("archive")
    confirm(page, "Reset")
    page.get_by_text("None is stored yet").wait_for()
    verb(page, "Resume").click()
    confirm(page, "Resume")


# -- roles ------------------------------------------------------------------------------------------------------------


def test_a_reader_sees_and_is_offered_nothing(world, tab):
    page = tab("rita", "connectors/shop/state").page
    page.get_by_text("You may look at this connector").wait_for()
    for name in (*VERBS, "Resume"):
        assert page.get_by_role("button", name=name, exact=True).count() == 0
    for name in ("Tail", "Explain", "Doctor", "New connector"):
        assert page.get_by_role("link", name=name).count() == 0
    page.get_by_role("link", name="Config").click()
    page.get_by_role("table", name="Config").wait_for()
    assert page.get_by_role("link", name="Edit").count() == 0
    for place in ("new", "connectors/shop/edit"):
        page.goto(f"{world.url}/ui/#/{place}")
        page.get_by_text("that needs the role admin").wait_for()


def test_an_operator_is_offered_what_operators_may(world, tab):
    page = tab("omar", "connectors/shop/state").page
    verb(page, "Pause").wait_for()
    assert page.get_by_role("button", name="Delete").count() == 0
    page.get_by_role("link", name="Tail").wait_for()


def test_who_has_a_prefix_sees_its_own_connectors(world, tab):
    page = tab("archie").page
    page.get_by_role("table", name="Connectors").get_by_role("link", name="archive").wait_for()
    assert page.get_by_role("table", name="Connectors").get_by_role("link").count() == 1
    assert page.get_by_role("link", name="Schemas").count() == 0
    page.goto(f"{world.url}/ui/#/connectors/shop")
    page.get_by_text("There is no connector of this name, or you may not see it").wait_for()


def test_a_request_that_the_page_does_not_offer_is_refused_by_the_worker(world, tab):
    page = tab("rita", "connectors/shop/state").page
    status = page.evaluate(
        """async (token) => (await fetch("../connectors/shop/pause", {method: "PUT", headers: {Authorization: `Bearer ${token}`}})).status""",
        token_of("rita"),
    )
    assert status == 403
    assert world.state("shop") == "RUNNING"


def test_a_wrong_token_is_told_and_a_right_one_is_kept_until_one_logs_out(browser, world):
    one = Tab(browser, world.url)
    page = one.log_in("cdc_nobody").page
    page.get_by_role("group", name="Error").wait_for()
    one.log_in(token_of("rita"))
    page.get_by_role("heading", name="Overview").wait_for()
    page.reload()
    page.get_by_role("heading", name="Overview").wait_for()
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Token", exact=True).wait_for()
    page.reload()
    page.get_by_label("Token", exact=True).wait_for()
    assert page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]") == ["", 0, 0]
    assert one.complaints == []
    one.close()


def test_a_user_that_is_removed_is_shown_out(world, tab):
    page = tab("gone").page
    page.get_by_role("heading", name="Overview").wait_for()
    write_users(world.users, *(name for name in USERS if name != "gone"))
    page.get_by_label("Token", exact=True).wait_for()
    assert page.get_by_role("table").count() == 0
