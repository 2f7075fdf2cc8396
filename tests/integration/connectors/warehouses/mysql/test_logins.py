"""Where a MySQL warehouse may be, and what its server may learn of the password."""

from __future__ import annotations

import socket
import struct
from contextlib import contextmanager

import pytest
from cdcworker.connectors.config import allowed_hosts, server_authentication
from cdcworker.connectors.config.allowed_hosts import HostPolicy
from cdcworker.connectors.mysql_client.login import Login
from cdcworker.connectors.warehouses.mysql.connection import opened
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import thread_pool

SECRET = "hunter2hunter2"
CAPABILITIES = 0x0008_0000 | 0x0000_8000 | 0x0000_0200 | 0x0000_0001
"""Of a server: ways to log in have names, and passwords are scrambled. No TLS."""


@pytest.fixture(autouse=True)
def _as_before():
    yield
    allowed_hosts.use(HostPolicy())
    server_authentication.use(server_authentication.METHODS[0])


def packet(number, content):
    return struct.pack("<I", len(content))[:3] + bytes([number]) + content


def greeting(plugin=b"mysql_native_password"):
    low, high = CAPABILITIES & 0xFFFF, CAPABILITIES >> 16
    head = b"\x0a8.0.36\0" + struct.pack("<I", 1) + b"x" * 8 + b"\0" + struct.pack("<HBHHB", low, 45, 2, high, 21)
    return packet(0, head + bytes(10) + b"y" * 12 + b"\0" + plugin + b"\0")


@contextmanager
def server_that_asks_for(plugin):
    """Yields a port, and what a client sent there after it was asked to log in so."""
    with server_that_says(greeting(), [b"\xfe" + plugin + b"\0" + b"z" * 20 + b"\0"]) as found:
        yield found


@contextmanager
def server_that_says(first, *later):
    """Yields a port, and what a client sent there after each of the later lists of packets."""
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as listening, thread_pool(1, "server") as pool:
        listening.settimeout(20)

        def serve():
            with listening.accept()[0] as client:
                client.settimeout(20)
                client.sendall(first)
                heard_last = client.recv(65536)
                for parts in later:
                    number = heard_last[3] + 1 if heard_last else 0
                    client.sendall(b"".join(packet(number + at, part) for at, part in enumerate(parts)))
                    heard_last = client.recv(65536)
                    heard.append(heard_last)

        done = pool.submit(serve)
        yield listening.getsockname()[1], heard
        done.result(30)


PLUGINS = [b"mysql_clear_password", b"dialog", b"sha256_password", b"mysql_old_password"]


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_server_that_is_not_verified_does_not_get_the_password(plugin):
    with server_that_asks_for(plugin) as (port, heard), pytest.raises(CdcError) as caught:
        opened(Login("127.0.0.1", port, "cdc", SECRET))
    assert caught.value.code == "spark.target_weak_login"
    assert SECRET not in str(caught.value)
    assert SECRET.encode() not in b"".join(heard)


FULL = [b"\x01\x04"]
"""caching_sha2_password: the server does not remember the password. The client would ask for its key now, and encrypt the password
with it."""
SWITCH = [b"\xfecaching_sha2_password\0" + b"z" * 20 + b"\0"]


@pytest.mark.parametrize(("plugin", "later"), [(b"caching_sha2_password", [FULL]), (b"dialog", [SWITCH, FULL])])
def test_a_server_that_is_not_verified_gets_no_password_for_a_key_of_its_own(plugin, later):
    with server_that_says(greeting(plugin), *later) as (port, heard), pytest.raises(CdcError) as caught:
        opened(Login("127.0.0.1", port, "cdc", SECRET))
    assert caught.value.code == "spark.target_weak_login"
    assert heard[-1] == b""


def test_a_server_that_remembers_the_password_gets_it_scrambled():
    remembers = [b"\x01\x03", b"\0\0\0\2\0\0\0"]
    with (
        server_that_says(greeting(b"caching_sha2_password"), remembers) as (port, heard),
        pytest.raises(CdcError) as caught,
    ):
        opened(Login("127.0.0.1", port, "cdc", SECRET))
    assert caught.value.code == "spark.target_unreachable"
    assert b"SET" in heard[-1]


@pytest.mark.parametrize("plugin", [b"parsec", b"auth_gssapi_client"])
def test_a_way_to_log_in_that_the_worker_does_not_have_is_named(plugin):
    with server_that_asks_for(plugin) as (port, _), pytest.raises(CdcError) as caught:
        opened(Login("127.0.0.1", port, "cdc", SECRET))
    assert (caught.value.code, "a way to log in" in caught.value.message) == ("spark.target_auth", True)


@pytest.mark.parametrize("password", [SECRET, "zażółć"])
def test_it_gets_the_password_where_the_operator_says_so(password):
    server_authentication.use("password")
    with server_that_asks_for(b"mysql_clear_password") as (port, heard), pytest.raises(CdcError):
        opened(Login("127.0.0.1", port, "cdc", password))
    assert password.encode() in b"".join(heard)


def test_tls_that_is_asked_for_is_not_left_out():
    with server_that_asks_for(b"mysql_native_password") as (port, heard), pytest.raises(CdcError) as caught:
        opened(Login("127.0.0.1", port, "cdc", SECRET, "verify-full"))
    assert caught.value.code == "spark.target_certificate"
    assert b"".join(heard) == b""


@pytest.mark.parametrize(
    ("policy", "host"),
    [
        (HostPolicy(loopback=False), "127.0.0.1"),
        (HostPolicy(loopback=False), "localhost"),
        (HostPolicy(), "169.254.169.254"),
        (HostPolicy(allowed=("db.example",)), "127.0.0.1"),
        (HostPolicy(), "/var/run/mysqld/mysqld.sock"),
        (HostPolicy(allowed=("db.example",)), "127.0.0.1,db.example"),
    ],
)
def test_a_warehouse_is_where_the_worker_lets_connectors_go(policy, host):
    allowed_hosts.use(policy)
    with pytest.raises(CdcError) as caught:
        opened(Login(host, 3306, "cdc", SECRET))
    assert caught.value.code == "config.host_not_allowed"


def test_the_password_is_in_no_text_of_a_login():
    assert SECRET not in repr(Login("db.example", 3306, "cdc", SECRET))
