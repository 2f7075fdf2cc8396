"""What a connection is asked for, and whose it is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.transport import connection
from cdcworker.connectors.postgres.transport.connection import application_name, conninfo
from cdcworker.connectors.postgres.transport.socket_stream import usable
from psycopg.conninfo import conninfo_to_dict

from ..test_rules import CONFIG

NEAR = {**CONFIG, "database.hostname": "127.0.0.1"}


def option(value: str, compiled: str = "prefer") -> SimpleNamespace:
    return SimpleNamespace(keyword=b"gssencmode", val=value.encode(), compiled=compiled.encode())


def defaults(monkeypatch, mode: SimpleNamespace) -> None:
    """What a libpq says that was built to encrypt where there is a ticket."""
    known = [SimpleNamespace(keyword=b"host", val=b"", compiled=None), mode]
    monkeypatch.setattr(connection, "pq", SimpleNamespace(Conninfo=SimpleNamespace(get_defaults=lambda: known)))


@pytest.mark.parametrize(
    ("transport", "environment", "given", "wanted"),
    [
        ("auto", None, "prefer", "disable"),
        ("socket", None, "prefer", "disable"),
        ("psycopg", None, "prefer", None),
        # By the environment, also to what libpq would do anyway, and by a service file.
        ("auto", "prefer", "prefer", None),
        ("auto", "require", "require", None),
        ("socket", None, "require", None),
        ("auto", "", "", "disable"),
    ],
)
def test_what_our_socket_reads_is_not_encrypted_by_gss_unless_that_was_chosen(
    monkeypatch, transport, environment, given, wanted
):
    monkeypatch.delenv("PGGSSENCMODE", raising=False)
    if environment is not None:
        monkeypatch.setenv("PGGSSENCMODE", environment)
    defaults(monkeypatch, option(given))
    settings = parse({**NEAR, "database.transport": transport})
    for is_replication in (False, True):
        info = conninfo_to_dict(conninfo(settings, "me", replication=is_replication))
        assert info.get("gssencmode") == wanted


@pytest.mark.parametrize(
    ("mode", "tls", "expected"),
    [("disable", False, True), ("disable", True, False), ("prefer", False, False), ("require", False, False)],
)
def test_only_a_connection_that_nothing_encrypts_is_read_off_its_socket(mode, tls, expected):
    assert usable(SimpleNamespace(ssl_in_use=tls, info=[option(mode)])) is expected


def test_the_name_of_a_connection_is_one_clusters_connectors_tasks_and_no_others():
    long = "c" * 100
    owners = [
        (group, name, task) for group in ("g", "h") for name in ("shop", long + "a", long + "b") for task in (0, 1)
    ]
    names = [application_name(*owner) for owner in owners]
    assert len(set(names)) == len(owners)
    assert all(len(name) <= 63 for name in names)
    assert application_name("g", "shop", 0) == application_name("g", "shop", 0) == "cdcworker:29d47578506c:shop:0"
