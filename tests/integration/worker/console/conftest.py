"""A browser, and the pages that a test has opened."""

from __future__ import annotations

import pytest

from tests.browser import Tab, chromium
from tests.integration.worker.console.console_world import token_of


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def tab(browser, world):
    """`tab("omar", "connectors/shop")`: a page on which this user is logged in. None of them may complain."""
    opened = []

    def make(who="ada", place="", **options):
        one = Tab(browser, world.url, **options).log_in(token_of(who))
        one.page.get_by_role("link", name="Overview").wait_for()
        if place:
            one.show(place)
        opened.append(one)
        return one

    yield make
    complaints = [text for one in opened for text in one.complaints]
    for one in opened:
        one.close()
    assert complaints == []
