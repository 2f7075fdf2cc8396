"""What is found on a real server before a connector starts, and that the statements which a finding names mend it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.checks import CheckResult
from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.config.settings import MySqlSettings, parse
from cdcworker.connectors.mysql.doctor.checks import CHECKS, check
from cdcworker.connectors.mysql.server.connection import opened
from cdcworker.connectors.mysql.server.examined_server import ExaminedServer
from cdcworker.schemas.errors import CdcError

from ..logged import LoggedServer

pytestmark = pytest.mark.mysql


def settings_of(server: LoggedServer, **more: str) -> MySqlSettings:
    return parse(
        {
            "name": "shop",
            "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
            "database.hostname": "127.0.0.1",
            "database.port": str(server.port),
            "database.user": "cdc",
            "database.password": server.password,
            "database.server.id": "4711",
            "database.include.list": "shop",
            "topic.prefix": "p",
            **{name.replace("__", "."): value for name, value in more.items()},
        }
    )


@pytest.fixture
def shop(logged: LoggedServer) -> LoggedServer:
    logged.ask("create database if not exists shop", "create or replace table shop.orders (id int primary key)")
    return logged


def found(settings: MySqlSettings) -> dict[str, CheckFinding]:
    return {finding.code: finding for finding in check(settings)}


def results(settings: MySqlSettings, name: str) -> list[CheckResult]:
    examined = ExaminedServer(settings)
    try:
        examined.log_in()
        return list(next(item for item in CHECKS if item.name == name).run(examined))
    finally:
        examined.close()


def test_a_server_that_is_set_as_it_should_be_has_no_findings(shop: LoggedServer):
    assert found(settings_of(shop)) == {}


@contextmanager
def set_to(server: LoggedServer, name: str, value: str) -> Iterator[None]:
    ((before,),) = server.ask(f"select @@global.{name}")
    server.ask(f"set global {name} = {value}")
    try:
        yield
    finally:
        server.ask(
            f"set global {name} = '{before}'" if not str(before).isdecimal() else f"set global {name} = {before}"
        )


@pytest.mark.parametrize(
    ("name", "value", "code", "severity", "item"),
    [
        ("binlog_format", "'STATEMENT'", e.LOG_FORMAT, "error", "log.format"),
        ("binlog_format", "'MIXED'", e.LOG_FORMAT, "error", "log.format"),
        ("binlog_row_image", "'MINIMAL'", e.ROW_IMAGE, "warning", "log.row_image"),
        ("binlog_row_image", "'NOBLOB'", e.ROW_IMAGE, "warning", "log.row_image"),
        ("binlog_row_metadata", "'NO_LOG'", e.ROW_METADATA, "note", "log.row_metadata"),
        ("binlog_expire_logs_seconds", "3600", e.LOG_EXPIRY, "warning", "log.expiry"),
        ("max_binlog_total_size", "1000000000", e.LOG_EXPIRY, "warning", "log.expiry"),
    ],
)
def test_a_setting_that_does_not_fit_is_named_and_mended(
    shop: LoggedServer, name: str, value: str, code: str, severity: str, item: str
):
    settings = settings_of(shop)
    with set_to(shop, name, value):
        findings = found(settings)
        assert list(findings) == [code]
        assert findings[code].severity == severity
        (result,) = (result for result in results(settings, item) if result.status != "ok")
        assert result.fix is not None
        shop.ask(*result.fix.statements)
        assert found(settings) == {}


def test_inserts_that_lack_columns_are_refused_where_no_row_is_read(shop: LoggedServer):
    with set_to(shop, "binlog_row_image", "'MINIMAL'"):
        findings = found(settings_of(shop, snapshot__mode="no_data"))
    assert [(code, finding.severity) for code, finding in findings.items()] == [(e.ROW_IMAGE, "error")]


def test_the_id_of_the_server_itself_is_refused(shop: LoggedServer):
    ((own,),) = shop.ask("select @@global.server_id")
    findings = found(settings_of(shop, database__server__id=str(own)))
    assert list(findings) == [e.SERVER_ID_IN_USE]
    assert findings[e.SERVER_ID_IN_USE].key == "database.server.id"


def test_a_user_without_the_rights_is_told_each_statement(shop: LoggedServer):
    shop.ask("create or replace user reader@'%' identified by 'reader'", "grant select on shop.* to reader@'%'")
    settings = settings_of(shop, database__user="reader", database__password="reader")
    assert list(found(settings)) == [e.NO_REPLICATION_RIGHT]
    bad = [result for result in results(settings, "rights.replication") if result.status == "error"]
    assert [result.measured for result in bad] == ["no REPLICATION SLAVE", "no REPLICATION CLIENT"]
    for result in bad:
        assert result.fix is not None
        shop.ask(*result.fix.statements)
    assert found(settings) == {}


def test_tables_that_the_user_may_not_see_are_not_there(shop: LoggedServer):
    shop.ask("create or replace user blind@'%' identified by 'blind'")
    shop.ask("grant replication slave, replication client on *.* to blind@'%'")
    findings = found(settings_of(shop, database__user="blind", database__password="blind"))
    assert list(findings) == [e.TABLE_MISSING]


@pytest.mark.parametrize(
    ("more", "code", "key"),
    [
        ({"database__password": "hunter2"}, e.AUTHENTICATION, "database.password"),
        ({"database__ssl__mode": "required"}, e.TLS, "database.ssl.mode"),
    ],
)
def test_a_login_that_is_refused_is_the_only_finding(shop: LoggedServer, more: dict[str, str], code: str, key: str):
    findings = found(settings_of(shop, **more))
    assert [(finding.code, finding.key) for finding in findings.values()] == [(code, key)]
    assert "hunter2" not in str(findings)


def test_a_server_that_is_away_is_unreachable(shop: LoggedServer):
    settings = settings_of(shop)
    with pytest.raises(CdcError) as caught:
        opened(replace(settings, login=replace(settings.login, port=1)))
    assert caught.value.code == e.UNREACHABLE
