"""What is judged for Java's clients of a lake: hosts by the addresses that Java has, and what a catalog's server sends."""

from __future__ import annotations

import json
import socket

import pytest
from cdcworker.connectors.config import allowed_hosts as hosts
from cdcworker.connectors.warehouses.lake.catalog.catalog_properties import judged_properties
from cdcworker.connectors.warehouses.lake.java.java_clients import JavaClients, hosts_of_master, own_ports
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.security.allowed_targets import policy_of


@pytest.fixture(autouse=True)
def policy():
    before = hosts._policy
    yield
    hosts.use(before)


@pytest.fixture
def judge():
    made = JavaClients(("/srv",))
    yield made
    made.close()


def asked(judge, content):
    """What Java gets: one question for each connection."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(judge.path))
        client.sendall(content if isinstance(content, bytes) else json.dumps(content).encode())
        client.shutdown(socket.SHUT_WR)
        return json.loads(b"".join(iter(lambda: client.recv(65_536), b"")))


def host(name, *addresses, port=443):
    return {"host": name, "port": port, "addresses": list(addresses)}


def refused(answer, code="config.host_not_allowed"):
    return answer.get("refused", "").startswith(f"[{code}]")


def test_a_host_is_judged_by_all_the_addresses_that_java_has(judge):
    assert asked(judge, host("lake.example", "192.0.2.1")) == {}
    for closed in ("169.254.169.254", "::ffff:169.254.169.254", "fe80::1%eth0", "100.100.100.200", "0.0.0.0"):
        assert refused(asked(judge, host(f"a{closed[:3]}.example", "192.0.2.1", closed)))
    hosts.use(hosts.HostPolicy((), loopback=False))
    assert refused(asked(judge, host("b.example", "127.0.0.1", port=1)))
    hosts.use(hosts.HostPolicy(hosts.parse_allowed(["10.0.0.0/8", ".store.example"])))
    assert asked(judge, host("c.example", "10.1.1.1")) == asked(judge, host("x.store.example", "192.0.2.1")) == {}
    assert refused(asked(judge, host("d.example", "192.0.2.1")))
    assert refused(asked(judge, host("e.example"))), "a proxy may know it, the list does not"


def test_a_name_that_once_led_to_a_closed_address_stays_closed(judge):
    assert asked(judge, host("turns.example", "192.0.2.1")) == {}
    assert refused(asked(judge, host("turns.example", "169.254.169.254")))
    assert refused(asked(judge, host("turns.example", "192.0.2.1")))


def test_the_operator_opens_hosts_for_lakes_alone(judge):
    rules = {"connector.hosts.allowed": "10.0.0.0/8", "connector.lake.hosts": "169.254.169.254,sts.example"}
    hosts.use(policy_of(rules))
    assert (
        asked(judge, host("169.254.169.254", "169.254.169.254")) == asked(judge, host("sts.example", "192.0.2.9")) == {}
    )
    assert refused(asked(judge, host("169.254.169.253", "169.254.169.253")))
    with pytest.raises(CdcError, match="closed to connectors"):
        hosts.judge("169.254.169.254", "database.hostname")


@pytest.mark.parametrize(("master", "names"), [
    ("local[2]", []), ("yarn", []), ("spark://a:7077,b:7077", ["a", "b"]), ("k8s://https://api.k8s.example:6443", ["api.k8s.example"]),
    ("k8s://https://[::1]:6443", ["::1"]),
])  # fmt: skip
def test_a_driver_reaches_the_cluster_that_the_operator_has_allowed(master, names):
    assert hosts_of_master(master) == names
    hosts.use(hosts.HostPolicy(hosts.parse_allowed(["10.0.0.0/8"])))
    judge = JavaClients(("/",), hosts_of_master(master))
    try:
        for name in names:
            assert asked(judge, host(name, "192.0.2.1")) == {}
        assert refused(asked(judge, host("other.example", "192.0.2.1")))
    finally:
        judge.close()


def test_java_reaches_this_process_itself(judge):
    hosts.use(hosts.HostPolicy((), loopback=False))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert port in own_ports()
        assert asked(judge, host("127.0.0.1", "127.0.0.1", port=port)) == {}
    assert refused(asked(judge, host("127.0.0.1", "127.0.0.1", port=port)))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"host":5}', b'{"host":"a","port":[],"addresses":5}',
                                     b'{"host":"a","port":1,"addresses":["x"]}', b'{"properties":5}', b'{"places":[5]}'])  # fmt: skip
def test_what_is_not_understood_is_refused_and_ends_nothing(judge, content):
    assert asked(judge, content)["refused"]
    assert asked(judge, host("lake.example", "192.0.2.1")) == {}


def test_a_server_s_properties_are_those_that_connectors_may_set_and_a_few():
    sent = {"prefix": "main", "s3.endpoint": "http://192.0.2.1:9000", "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "client.refresh-credentials-endpoint": "v1/credentials", "uri": "https://192.0.2.1/api", "default-base-location": "s3://b",
            "metrics-reporter-impl": "evil.Reporter", "jdbc.user": "x", "table-override.write.data.path": "/etc"}  # fmt: skip
    judged, left_out = judged_properties(sent, ["/"])
    assert sorted(left_out) == [
        "default-base-location",
        "jdbc.user",
        "metrics-reporter-impl",
        "table-override.write.data.path",
    ]
    assert judged == {name: value for name, value in sent.items() if name not in left_out}


@pytest.mark.parametrize(("name", "value"), [
    ("io-impl", "evil.FileIO"), ("uri", "file:///etc/passwd"), ("uri", "http://169.254.169.254/"), ("rest.auth.type", "evil.Manager"),
    ("s3.endpoint", "http://u@h/"), ("client.refresh-credentials-endpoint", "http://169.254.169.254/"), ("warehouse", "file:///etc"),
    ("header.X", "a\nHost: b"), ("oauth2-server-uri", "gopher://h/"), ("s3.staging-dir", "../x"), ("token", "a\0b"),
])  # fmt: skip
def test_a_property_with_a_closed_value_is_refused(name, value):
    with pytest.raises(CdcError) as caught:
        judged_properties({name: value}, ["/"])
    assert caught.value.code in ("config.catalog_property", "config.host_not_allowed", "file.path_not_allowed")
    assert value not in str(caught.value)


def test_places_of_files_lie_where_they_may(judge):
    assert asked(judge, {"places": ["/srv/lake/t", "file:/srv/lake/t", "file:///srv/lake/t", "s3://b/t"]}) == {}
    assert refused(asked(judge, {"places": ["file:///etc/t"]}), "file.path_not_allowed")
    for place in ("http://192.0.2.1/t", "jar:file:/x!/t", "ftp://h/t", "file://host/t", "/srv/../etc"):
        assert asked(judge, {"places": [place]})["refused"], place
