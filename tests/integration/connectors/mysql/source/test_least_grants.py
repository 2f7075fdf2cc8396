"""The user whom `cdcworker roles` makes can do all that a source does; one who lacks any of its rights is told which."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cdcworker.connectors.api.abilities import RoleRequest, RolesOfServers, ScriptsRoles, StandingTask
from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.config.settings import parse
from cdcworker.connectors.mysql.source.connector import MySqlSource
from cdcworker.connectors.mysql.source.position import StoredPosition
from cdcworker.connectors.mysql.source.position_checks import verify

from ..logged import LoggedServer
from .reading import Reading
from .test_task import table

pytestmark = pytest.mark.mysql
USER, PASSWORD = "o'reader", "hunter2 of the reader"
ACCOUNT = "'o''reader'@'%'"


@pytest.fixture
def granted(shop: LoggedServer) -> LoggedServer:
    """The server with two tables, and the user that the script makes."""
    table(shop)
    shop.ask("create table shop.`odd ``name` (id int primary key)", f"drop user if exists {ACCOUNT}")
    run_script(shop)
    shop.ask(f"alter user {ACCOUNT} identified by '{PASSWORD}' account unlock")
    return shop


def run_script(server: LoggedServer, **options: object) -> None:
    assert issubclass(MySqlSource, ScriptsRoles)
    assert isinstance(MySqlSource, RolesOfServers)
    wanted = RoleRequest(USER, "", [("shop", "t"), ("shop", "odd `name")], options)
    server.ask(*(statement for step in MySqlSource.role_script(wanted) for statement in step.statements))


def config(**more: str) -> dict[str, str]:
    return {"database__user": USER, "database__password": PASSWORD, **more}


def problems(one: Reading) -> dict[str, str]:
    return {finding.code: finding.message for finding in MySqlSource(one.config).check()}


def test_the_script_is_enough_for_all_that_a_source_does(
    granted: LoggedServer, reading: Callable[..., Reading]
) -> None:
    run_script(granted)
    one = reading(granted, **config()).start()
    one.until_loaded()
    granted.ask("alter table shop.t add column more int", "insert into shop.t values (7, 'v7', 7)")
    one.until(lambda: len(one.rows("t")) == 4)
    one.stop()
    assert problems(one) == {}
    assert one.position is not None
    verify(parse(one.config), StoredPosition.from_json(one.position))
    found = list(MySqlSource(one.config).examine({0: one.position}))
    # The server of these tests keeps its log for ever.
    assert [item.check.name for item in found if item.result.status in ("error", "warning")] == ["log.size"]
    # Who else reads the log only an administrator may see.
    assert [item.check.name for item in found if item.result.status == "unknown"] == ["replica.readers"]
    numbers, _ = MySqlSource(one.config).measure_lag(StandingTask("c", 0, {"position": one.position}))
    assert (numbers["lag_bytes"], numbers["lag_transactions"]) == (0, 0)


@pytest.mark.parametrize(
    ("right", "code", "named"),
    [
        ("replication slave on *.*", e.NO_REPLICATION_RIGHT, "REPLICATION SLAVE"),
        ("binlog monitor on *.*", e.NO_REPLICATION_RIGHT, "REPLICATION CLIENT"),
        ("select on shop.t", e.TABLE_MISSING, "shop.t"),
    ],
)
def test_a_user_who_lacks_one_right_is_told_which(
    granted: LoggedServer, reading: Callable[..., Reading], right: str, code: str, named: str
) -> None:
    granted.ask(f"revoke {right} from {ACCOUNT}")
    one = reading(granted, **config(table__include__list="shop\\.t,shop\\.odd `name"))
    found = problems(one)
    assert list(found) == [code]
    assert named in found[code]
    assert PASSWORD not in str(found)
    (mended,) = (item for item in MySqlSource(one.config).examine({}) if item.result.code == code)
    assert mended.result.fix is not None
    granted.ask(*mended.result.fix.statements)
    assert problems(one) == {}


def test_a_table_that_is_seen_and_may_not_be_read(granted: LoggedServer, reading: Callable[..., Reading]) -> None:
    granted.ask(f"revoke select on shop.t from {ACCOUNT}", f"grant insert on shop.t to {ACCOUNT}")
    one = reading(granted, **config())
    found = problems(one)
    assert list(found) == [e.PERMISSION]
    assert "shop.t" in found[e.PERMISSION]


def test_a_new_user_cannot_log_in_before_it_has_a_password(shop: LoggedServer, reading: Callable[..., Reading]) -> None:
    table(shop)
    shop.ask("create table shop.`odd ``name` (id int primary key)", f"drop user if exists {ACCOUNT}")
    run_script(shop, replicas=True)
    one = reading(shop, database__user=USER, database__password="")
    assert list(problems(one)) == [e.AUTHENTICATION]
