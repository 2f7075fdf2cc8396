"""What SHOW GRANTS and the variables of a server say, of both servers."""

from __future__ import annotations

import pytest
from cdcworker.connectors.mysql.server.facts import ServerFacts
from cdcworker.connectors.mysql.server.grants import Grants

MARIADB = "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO `cdc`@`%` IDENTIFIED BY PASSWORD '*00'"
MYSQL = "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO `cdc`@`%`"


def test_rights_on_everything_are_read_and_those_on_tables_are_none_of_them():
    grants = Grants.parse([MYSQL, "GRANT EVENT ON `shop`.* TO `cdc`@`%`"])
    assert not grants.lacks("REPLICATION SLAVE")
    assert not grants.lacks("NO SUCH", "REPLICATION CLIENT")
    assert grants.lacks("EVENT")
    mariadb = Grants.parse([MARIADB])
    assert mariadb.lacks("REPLICATION CLIENT")
    assert not mariadb.lacks("REPLICATION CLIENT", "BINLOG MONITOR")


def test_all_privileges_are_every_right():
    assert not Grants.parse(["GRANT ALL PRIVILEGES ON *.* TO `a`@`%` WITH GRANT OPTION"]).lacks("REPLICATION SLAVE")
    assert Grants.parse(["GRANT ALL PRIVILEGES ON `shop`.* TO `a`@`%`"]).lacks("REPLICATION SLAVE")


def test_a_user_with_a_role_may_have_what_is_not_listed():
    assert not Grants.parse(["GRANT USAGE ON *.* TO `a`@`%`", "GRANT `reader`@`%` TO `a`@`%`"]).lacks(
        "REPLICATION SLAVE"
    )


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"binlog_expire_logs_seconds": "3600"}, 3600),
        ({"binlog_expire_logs_seconds": "0", "expire_logs_days": "1.500000"}, 129_600),
        ({"binlog_expire_logs_seconds": "0", "expire_logs_days": "0"}, 0),
        ({"binlog_expire_logs_seconds": "3600", "binlog_expire_logs_auto_purge": "OFF"}, 0),
        ({}, 0),
    ],
)
def test_the_age_at_which_log_is_removed(variables: dict[str, str], seconds: int):
    assert ServerFacts(variables).expiry_s == seconds


def test_servers_are_told_apart():
    mysql = ServerFacts({"version": "9.7.1", "gtid_mode": "ON"})
    mariadb = ServerFacts({"version": "11.4.5-MariaDB-log"})
    assert (mysql.product, mysql.version, mysql.has_gtids) == ("MySQL", (9, 7, 1), True)
    assert (mariadb.product, mariadb.version, mariadb.has_gtids) == ("MariaDB", (11, 4, 5), True)
    assert not ServerFacts({"version": "8.0.36", "gtid_mode": "OFF_PERMISSIVE"}).has_gtids
    assert mysql.set_global("a", "1") == "SET PERSIST a = 1"
    assert mariadb.set_global("a", "1") == "SET GLOBAL a = 1"
