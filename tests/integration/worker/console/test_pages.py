"""Every page of the console in a real browser, over two workers, a PostgreSQL source and a Spark sink."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.integration.worker.console.console_world import DATABASE_SECRET, ROW, ConsoleWorld, token_of

pytestmark = [
    pytest.mark.kafka, pytest.mark.postgres, pytest.mark.spark, pytest.mark.browser, pytest.mark.long,
    pytest.mark.timeout(600),
]  # fmt: skip

PICTURES = Path(os.environ.get("CDC_CONSOLE_PICTURES", "build/console"))
PLACES = {
    "overview": ("", "Needs attention"),
    "connector": ("connectors/shop/state", "Numbers"),
    "failed": ("connectors/broken/state", "What to do:"),
    "tables": ("connectors/shop/tables", "public.orders"),
    "topics-of-a-sink": ("connectors/warehouse/tables", "Tables written"),
    "snapshots": ("connectors/shop/snapshots", "initial"),
    "config": ("connectors/shop/config", "topic.prefix"),
    "offsets": ("connectors/warehouse/offsets", "Next offset"),
    "dead-letters": ("connectors/warehouse/letters", "1 dead letter in all"),
    "verify": ("connectors/warehouse/verify", "Comparison with the source"),
    "tail": ("connectors/shop/tail", "Rows as they change"),
    "explain": ("connectors/shop/explain", "The way of one row"),
    "doctor": ("connectors/shop/doctor", "Nothing is changed"),
    "journal-of-a-connector": ("connectors/shop/journal", "Why its tasks moved"),
    "edit": ("connectors/shop/edit", "Needed and important"),
    "new": ("new", "Which class?"),
    "schemas": ("schemas", "public.orders-value"),
    "schema": ("schemas/SUBJECT", "Version 1"),
    "incidents": ("incidents", "1 of 1 task FAILED"),
    "journal": ("journal", "Why tasks moved"),
    "error": ("errors/postgres.slot_lost", "What stays safe"),
}
SAMPLES = 25
"""Looks at the cluster in the pictures of the docs: more than a minute."""
FOR_THE_DOCS = ("overview-1280-light", "failed-1280-dark", "edit-1280-light", "connector-360-dark")


@pytest.fixture(scope="module")
def world(kafka, postgres, tmp_path_factory):
    made = ConsoleWorld(tmp_path_factory.mktemp("console"), kafka, postgres)
    try:
        made.start()
        made.start_shop()
        yield made
    finally:
        made.close()


def opened(tab, world, name, who="ada", **options):
    place, text = PLACES[name]
    one = tab(who, place.replace("SUBJECT", world.topic("public.orders-value")), **options)
    one.page.get_by_text(text).first.wait_for()
    return one


# -- what is told -----------------------------------------------------------------------------------------------------


def test_the_overview_tells_of_workers_connectors_and_what_needs_attention(world, tab):
    page = opened(tab, world, "overview").page
    for name in ("shop", "broken", "warehouse", "archive"):
        page.get_by_role("table", name="Connectors").get_by_role("link", name=name, exact=True).wait_for()
    for worker in ("w1", "w2"):
        page.get_by_role("table", name="Workers").get_by_role("cell", name=re.compile(f"^{worker}")).wait_for()
    attention = page.get_by_role("region", name="Needs attention")
    attention.get_by_text("1 of 1 task FAILED").wait_for()
    attention.get_by_role("link", name="postgres.authentication_failed").click()
    page.get_by_role("heading", name="postgres.authentication_failed").wait_for()
    page.get_by_role("heading", name="What to do").wait_for()


def test_a_change_is_shown_without_being_asked_for(world, tab):
    page = opened(tab, world, "overview").page
    row = page.get_by_role("table", name="Connectors").get_by_role("row", name=re.compile("archive"))
    assert world.ask("PUT", "/connectors/archive/pause").status_code == 202
    row.get_by_text("PAUSED").first.wait_for()
    assert world.ask("PUT", "/connectors/archive/resume").status_code == 202
    row.get_by_text("RUNNING").first.wait_for()


def test_charts_are_told_in_words_too(world, tab):
    page = opened(tab, world, "connector").page
    page.get_by_role("img", name=re.compile("Lag over the last minutes: now")).wait_for()
    page.get_by_role("img", name=re.compile("Records over the last minutes: now")).wait_for()
    assert page.locator("canvas").count() == 2


def test_rows_are_followed_while_they_change(world, tab):
    page = opened(tab, world, "tail").page
    page.get_by_label("Table, an expression").fill("public.orders")
    page.get_by_label("From").fill("now")
    page.get_by_role("button", name="Start", exact=True).click()
    page.get_by_text("Reading.").wait_for()
    change = page.locator(".changes li").first
    for number in range(100):
        world.db.execute("update orders set state = %s where id = 17", [f"paid {number}"])
        if change.count():
            break
        page.wait_for_timeout(200)
    change.get_by_text("id=17").first.wait_for()
    assert change.locator("del").count() == change.locator("ins").count() == 1
    page.get_by_role("button", name="Stop", exact=True).last.click()
    page.get_by_role("button", name="Start", exact=True).wait_for()


def test_the_way_of_one_row(world, tab):
    page = opened(tab, world, "explain").page
    page.get_by_label("Table", exact=True).fill("orders")
    page.get_by_label(re.compile("^Key")).fill("42")
    page.get_by_role("button", name="Follow").click()
    page.get_by_text("warehouse has applied it").wait_for(timeout=120_000)
    assert page.locator(".stages li").count() >= 4


def test_the_doctor_tells_what_is_wrong_first(world, tab):
    page = opened(tab, world, "doctor").page
    page.get_by_role("button", name="Examine", exact=True).click()
    page.get_by_text(re.compile(r"\d+ checks fine")).click()
    page.get_by_role("table", name="Checks that are fine").get_by_text("reach.connection").wait_for()


def test_a_comparison_and_what_it_says(world, tab):
    page = opened(tab, world, "verify").page
    page.get_by_role("button", name="Compare now").click()
    page.get_by_role("dialog").get_by_role("button", name="Compare now").click()
    page.get_by_role("table", name="Tables compared").get_by_text("public.orders").wait_for(timeout=90_000)
    page.get_by_text("equal").first.wait_for()


def test_how_a_schema_has_changed(world, tab):
    world.db.execute("alter table customers add column country text")
    world.db.execute("insert into customers values (2, 'x', 'NL')")
    subject = world.topic("public.customers-value")
    world.worker.wait(
        lambda: len(world.client.get(f"/v1/schemas/{subject}/history").json()["versions"]) == 2, "a version"
    )
    page = tab("rita", f"schemas/{subject}").page
    newest = page.get_by_role("region", name="Version 2")
    newest.get_by_role("row", name=re.compile("country")).get_by_text("added").wait_for()


# -- what is not told -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["ada", "rita"])
def test_no_page_holds_a_secret_and_none_a_row_that_nobody_asked_for(world, tab, who):
    one = tab(who)
    for place, text in PLACES.values():
        one.show(place.replace("SUBJECT", world.topic("public.orders-value")))
        if who == "ada":
            one.page.get_by_text(text).first.wait_for()
        found = one.text()
        assert DATABASE_SECRET not in found
        assert ROW not in found
        assert token_of(who) not in found


def test_a_secret_that_is_edited_stays_masked(world, tab):
    one = opened(tab, world, "edit")
    field = one.page.get_by_label("database.password")
    assert (field.input_value(), field.get_attribute("type")) == ("****", "password")


# -- for everybody ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLACES)
def test_nothing_hinders_a_keyboard_or_a_screen_reader(world, tab, name):
    for scheme in ("light", "dark"):
        assert opened(tab, world, name, scheme=scheme, checked=False).serious() == []


def test_a_dialog_hinders_nobody_either(world, tab):
    one = opened(tab, world, "connector", checked=False)
    one.page.get_by_role("button", name="Delete").click()
    one.page.get_by_text("Tasks that end: 1.").wait_for()
    assert one.serious() == []


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_screen_and_a_telephone(world, tab, width, scheme):
    """The pictures are for people, and those in the docs are among them."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    one = tab("ada", width=width, scheme=scheme)
    wanted = SAMPLES if "CDC_CONSOLE_PICTURES" in os.environ else 3
    with world.load():
        one.page.get_by_role("img", name=re.compile("^Records .* now [1-9]")).wait_for()
        points = one.page.get_by_role("img", name="Lag of shop over the last minutes").locator("polyline")
        world.worker.wait(lambda: (points.get_attribute("points") or "").count(",") >= wanted, "samples", 240.0)
        _take_pictures(world, one, width, scheme)


def _take_pictures(world, one, width, scheme):
    for name, (place, text) in PLACES.items():
        page = one.show(place.replace("SUBJECT", world.topic("public.orders-value")))
        page.get_by_text(text).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        picture = f"{name}-{width}-{scheme}"
        if "CDC_CONSOLE_PICTURES" not in os.environ or picture in FOR_THE_DOCS:
            page.screenshot(path=str(PICTURES / f"{picture}.png"), full_page=name != "edit")
