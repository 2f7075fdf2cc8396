"""A person in a real browser logs in to the console at a real identity provider, and out again."""

from __future__ import annotations

import re

import pytest

from tests.browser import Tab, chromium

pytestmark = [pytest.mark.oidc, pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def tab(browser, provider, workers):
    """`tab(width)`: a page of the console. It asks nobody but the workers and the provider."""
    opened = []

    def make(**options):
        one = Tab(browser, workers.api(""), **options)
        # The provider's own page asks for a font.
        one.context.route("https://fonts.googleapis.com/**", lambda route: route.abort())
        opened.append(one)
        return one

    yield make
    own = (f"asks {provider.issuer}", "asks https://fonts.googleapis.com", f"asks {workers.api('', 1)}")
    complaints = [text for one in opened for text in one.complaints if not text.startswith(own)]
    for one in opened:
        one.close()
    assert complaints == []


def log_in(page, subject):
    page.get_by_role("link", name="Log in at the identity provider").click()
    page.get_by_placeholder("Enter any login").fill(subject)
    page.get_by_placeholder("and password").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


def test_a_person_logs_in_works_and_logs_out(tab, provider, workers):
    one = tab()
    page = one.page
    page.goto(f"{one.url}/ui/#/journal")
    page.get_by_role("link", name="Log in at the identity provider").wait_for()
    assert one.serious() == []
    log_in(page, "u-ada")
    page.get_by_role("heading", level=1, name=re.compile("ournal")).wait_for()
    assert page.url.endswith("/ui/#/journal")
    page.get_by_role("banner").get_by_text("ada").wait_for()
    cookies = {cookie["name"].rstrip("0123456789abcdef"): cookie for cookie in one.context.cookies(one.url)}
    session = cookies["cdcworker-"]
    assert (session["httpOnly"], session["sameSite"], session["path"]) == (True, "Strict", "/")
    assert page.evaluate("document.cookie + JSON.stringify(sessionStorage) + JSON.stringify(localStorage)") == "{}{}"
    # The other worker takes the session, too.
    page.goto(f"{workers.urls[1]}#/connectors/shop-orders/state")
    page.get_by_role("heading", name="shop-orders").wait_for()
    page.get_by_role("group", name="Operate the connector").get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").wait_for(state="detached")
    assert workers.trail[-1]["subject"] == "u-ada"
    page.goto(f"{one.url}/ui/")
    page.get_by_role("button", name="Log out").click()
    page.get_by_role("button", name="Yes, sign me out").click()
    page.get_by_role("link", name="Log in at the identity provider").wait_for()
    assert "cdcworker-" not in {cookie["name"].rstrip("0123456789abcdef") for cookie in one.context.cookies(one.url)}


def test_a_session_that_is_revoked_ends_under_the_page(tab, workers):
    one = tab()
    one.page.goto(f"{one.url}/ui/")
    log_in(one.page, "u-rita")
    one.page.get_by_role("heading", name="Overview").wait_for()
    workers.write({"subject": "u-rita"})
    one.page.get_by_role("link", name="Schemas").click()
    one.page.get_by_role("link", name="Log in at the identity provider").wait_for(timeout=60_000)
    one.page.get_by_text("does not know these credentials any more").wait_for()


def test_who_has_no_role_is_told_and_may_come_as_somebody_else(tab):
    one = tab(width=360)
    one.page.goto(f"{one.url}/ui/")
    log_in(one.page, "u-nobody")
    one.page.get_by_text("norbert has not the role read").wait_for()
    one.page.get_by_role("link", name="Log in there as somebody else").click()
    one.page.get_by_placeholder("Enter any login").wait_for()


def test_a_login_that_goes_wrong_is_told_in_words(tab):
    one = tab()
    one.page.goto(f"{one.url}/ui/")
    one.page.get_by_role("link", name="Log in at the identity provider").click()
    one.page.get_by_role("link", name="Cancel").click()
    one.page.get_by_text("the provider says access_denied").wait_for()
    assert one.serious() == []
    one.page.get_by_role("link", name="Back to the console").click()
    one.page.get_by_role("link", name="Log in at the identity provider").wait_for()
