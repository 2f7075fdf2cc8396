"""Schema changes by policy, and tables that are held back while the others go on, against a real server."""

from __future__ import annotations

import pytest

from tests.contract import schema_matrix

from ..logged import LoggedServer
from .mariadb_database import MariaDbDatabase

pytestmark = pytest.mark.mysql


@pytest.fixture
def source(shop: LoggedServer) -> MariaDbDatabase:
    return MariaDbDatabase(shop)


def test_each_schema_change_holds_its_own_table_back_and_no_other_row_is_lost(source: MariaDbDatabase) -> None:
    schema_matrix.each_holds_its_own_table_back(source)


def test_each_schema_change_halts_and_goes_on_from_there_once_the_policy_lets_it(source: MariaDbDatabase) -> None:
    schema_matrix.each_halts_until_the_policy_lets_it(source)


@pytest.mark.parametrize("inside", [False, True], ids=["between transactions", "inside of one"])
def test_every_schema_change_is_followed_with_the_right_rows_on_both_sides(
    source: MariaDbDatabase, inside: bool
) -> None:
    schema_matrix.each_is_followed(source, inside=inside)


@pytest.mark.parametrize("policy", ["pause-table", "halt"])
def test_a_schema_change_that_the_policy_does_not_allow_stops_its_table_or_the_task(
    source: MariaDbDatabase, policy: str
) -> None:
    schema_matrix.one_that_is_not_allowed_stops(source, policy)


def test_schema_changes_under_load_with_kills_leave_every_row_in_the_shape_of_its_time(
    source: MariaDbDatabase,
) -> None:
    schema_matrix.under_load_with_kills(source)
