"""Schema changes by policy, and tables that are held back while the others go on, against a real server."""

from __future__ import annotations

import pytest

from tests.contract import held_tables, schema_matrix

from ..logged import LoggedServer
from .mariadb_database import MariaDbDatabase

pytestmark = [pytest.mark.mysql, pytest.mark.sampled(2, "held")]


@pytest.fixture
def source(shop: LoggedServer) -> MariaDbDatabase:
    return MariaDbDatabase(shop)


def test_a_large_table_without_a_key_is_held_back_and_a_request_for_it_fails(source: MariaDbDatabase) -> None:
    held_tables.a_large_table_without_a_key_is_held_back(source)


def test_tables_that_the_user_may_not_read_are_held_back_and_come_back_with_the_right(source: MariaDbDatabase) -> None:
    held_tables.tables_that_may_not_be_read_are_held_back(source)


def test_with_the_policy_halt_no_table_that_may_not_be_read_is_held_back(source: MariaDbDatabase) -> None:
    held_tables.with_the_policy_halt_none_is(source)


def test_each_schema_change_holds_its_own_table_back_and_no_other_row_is_lost(source: MariaDbDatabase) -> None:
    schema_matrix.each_holds_its_own_table_back(source)


def test_each_schema_change_halts_and_goes_on_from_there_once_the_policy_lets_it(source: MariaDbDatabase) -> None:
    schema_matrix.each_halts_until_the_policy_lets_it(source)


# A statement that alters a table ends the transaction in which it stands.
@pytest.mark.parametrize(
    "inside", [False, pytest.param(True, marks=pytest.mark.long)], ids=["between transactions", "inside of one"]
)
def test_every_schema_change_is_followed_with_the_right_rows_on_both_sides(
    source: MariaDbDatabase, inside: bool
) -> None:
    schema_matrix.each_is_followed(source, inside=inside)


@pytest.mark.parametrize("policy", ["pause-table", pytest.param("halt", marks=pytest.mark.long)])
def test_a_schema_change_that_the_policy_does_not_allow_stops_its_table_or_the_task(
    source: MariaDbDatabase, policy: str
) -> None:
    schema_matrix.one_that_is_not_allowed_stops(source, policy)


def test_schema_changes_under_load_with_kills_leave_every_row_in_the_shape_of_its_time(
    source: MariaDbDatabase,
) -> None:
    schema_matrix.under_load_with_kills(source)
