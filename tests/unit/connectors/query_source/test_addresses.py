"""Addresses and logins of the source of a query: which database they lead to, what is refused before anything is connected to."""

from __future__ import annotations

import sys

import pytest
from cdcworker.connectors.api.kit import SourcePlace
from cdcworker.connectors.config import tls_policy
from cdcworker.connectors.mysql_client.client import WeakLoginError
from cdcworker.connectors.query_source import mysql
from cdcworker.connectors.query_source.connector import QuerySource
from cdcworker.connectors.query_source.database import QueryRequest
from cdcworker.connectors.query_source.databases import open_database
from cdcworker.connectors.query_source.source import QueryRows
from cdcworker.schemas.errors import CdcError

SECRET = "s3cret-password"
SERVERS = ("jdbc:postgresql://{}/shop", "jdbc:mysql://{}/shop", "jdbc:mariadb://{}/shop")


def config(url, **more):
    given = {
        "connector.class": "query", "topic.prefix": "p", "connection.url": url, "query": "select 1 as id", "query.table": "t",
        "mode": "incrementing", "incrementing.column.name": "id",
    }  # fmt: skip
    return given | {name.replace("__", "."): value for name, value in more.items()}


def problems(url, **more):
    found = QuerySource.config_def.validate(config(url, **more))
    return {each.name: each.errors[0] for each in found if each.errors}


def place(url, **more):
    return SourcePlace(QuerySource.config_def.parse(config(url, **more)), ("/srv",))


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("jdbc:sqlite:/srv/a.db", "QueriedSqlite"), ("jdbc:sqlite:file:/srv/a.db", "QueriedSqlite"), ("jdbc:duckdb:/srv/a b.duckdb", "QueriedDuckDb"),
        ("jdbc:postgresql://a,b:5433/shop?currentSchema=x", "QueriedPostgres"), ("jdbc:mariadb://[::1]:3307/shop", "QueriedMySql"),
    ],
)  # fmt: skip
def test_the_scheme_of_an_address_chooses_the_database(url, kind):
    login = (
        {} if kind in ("QueriedSqlite", "QueriedDuckDb") else {"connection__user": "reader", "connection__password": SECRET}
    )
    assert problems(url, **login) == {}
    assert type(open_database(place(url, **login))).__name__ == kind


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("jdbc:oracle:thin:@x", "jdbc:sqlite:/PATH"), ("jdbc:sqlite:relative.db", "begins with /"), ("jdbc:duckdb::memory:", "begins with /"),
        ("jdbc:duckdb:/srv/a?x=1", "begins with /"), (f"jdbc:postgresql://u:{SECRET}@h/shop", "holds a login"),
        (f"jdbc:mysql://h/shop?password={SECRET}", "holds a login"), ("jdbc:postgresql://h/shop?options=-c%20x", "not available"),
    ],
)  # fmt: skip
def test_other_addresses_are_refused_without_being_repeated(url, text):
    found = problems(url, connection__username="reader")
    assert text in found["connection.url"]
    assert SECRET not in str(found)


def test_a_server_needs_a_user_and_a_file_has_none():
    assert problems("jdbc:mysql://h/shop").keys() == {"connection.username"}
    login = {"connection__user": "reader", "connection__password": SECRET}
    found = problems("jdbc:duckdb:/srv/a", **login)
    assert (found.keys(), SECRET in str(found)) == ({"connection.username", "connection.password"}, False)


@pytest.mark.parametrize("url", SERVERS)
def test_addresses_that_are_closed_to_connectors_are_not_connected_to(url):
    source = QueryRows(place(url.format("169.254.169.254"), connection__user="reader", connection__password=SECRET))
    with pytest.raises(CdcError) as caught:
        source.tables()
    assert caught.value.code == "config.host_not_allowed"
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", SERVERS)
def test_less_tls_than_the_worker_asks_for_is_refused(url):
    tls_policy.use("verified")
    try:
        with pytest.raises(CdcError) as caught:
            open_database(place(url.format("db.example.com"), connection__user="reader"))
        assert caught.value.code == "config.tls_not_enough"
        open_database(place(url.format("db.example.com") + "?sslmode=verify-full", connection__user="reader"))
    finally:
        tls_policy.use("any")


def test_a_server_that_asks_for_the_password_itself_does_not_get_it(monkeypatch):
    def weak(*_args, **_options):
        raise WeakLoginError(2059, "the server asks for the password itself")

    monkeypatch.setattr(mysql, "connected", weak)
    source = QueryRows(place("jdbc:mysql://127.0.0.1/shop", connection__user="reader", connection__password=SECRET))
    with pytest.raises(CdcError) as caught:
        source.tables()
    assert (caught.value.code, "sslmode" in caught.value.hint) == ("query.login_refused", True)


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymysql", None)
    source = QueryRows(place("jdbc:mysql://127.0.0.1/shop", connection__user="reader"))
    with pytest.raises(CdcError) as caught:
        source.tables()
    assert (caught.value.code, caught.value.kind) == ("query.driver_missing", "environment")


def test_a_request_does_not_show_its_password():
    request = QueryRequest(None, "select 1", 1.0, "reader", SECRET)
    assert SECRET not in repr(request)
