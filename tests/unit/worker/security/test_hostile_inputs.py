"""Hostile inputs, hundreds of each kind: none gets through, none is changed on its way."""

import ipaddress
import os
import re
import socket

import psycopg
import pytest
from cdcworker.connectors.config import allowed_hosts as hosts
from cdcworker.connectors.config.allowed_paths import allowed_path
from cdcworker.connectors.postgres.config.settings import parse as parse_postgres
from cdcworker.connectors.postgres.server.fixes import ident
from cdcworker.connectors.postgres.transport.connection import conninfo
from cdcworker.connectors.postgres.transport.libpq_stream import quote as quote_name
from cdcworker.schemas import topics
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.config.config_providers import DIR_PATHS_KEY, FILE_PATHS_KEY, resolve
from cdcworker.worker.logs.setup import one_line
from cdcworker.worker.protocol.task_spec import transactional_id
from cdcworker.worker.security import allowed_targets as reach
from cdcworker.worker.validation.validate import ConnectorCatalog, check_keys
from psycopg.conninfo import conninfo_to_dict

from tests import hostile

IDENTIFIERS = hostile.identifiers()
CONFIGS = hostile.configs()
BASE = {
    "name": "shop",
    "connector.class": "postgres",
    "database.hostname": "93.184.216.34",
    "database.user": "u",
    "database.password": "p",
    "database.dbname": "d",
    "topic.prefix": "t",
}


def test_there_are_enough_of_each():
    assert len(IDENTIFIERS) >= 500
    assert len(CONFIGS) >= 500
    assert len(hostile.paths("/r", "/s")) >= 100
    assert len(hostile.HOSTS) + len(hostile.NAMES_THAT_LEAD_ASTRAY) >= 50


@pytest.fixture(autouse=True)
def _policy():
    yield
    reach.admit({}, {})


def outcome(function, *arguments):
    """(value, None) or (None, our error)."""
    try:
        return function(*arguments), None
    except CdcError as error:
        return None, error


# --- names -----------------------------------------------------------------------------------------------------------


def encodable(names):
    for name in names:
        name.encode()
        yield name


def test_topics_are_legal_and_lead_back_to_their_tables():
    seen = {}
    for name in encodable(IDENTIFIERS):
        for path in (("public", name), (name, "t")):
            topic, error = outcome(topics.topic_name, "shop", path)
            if error is not None:
                assert error.kind == "config"
                continue
            assert re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic), name
            assert topics.topic_path("shop", topic) == path
            assert seen.setdefault(topic, path) == path
    assert len(seen) >= 500


def sql_identifiers(text):
    """What a server would read: the identifiers of a dotted name; ValueError when anything is left over."""
    found, at = [], 0
    while True:
        match = re.compile(r'"((?:[^"\x00]|"")+)"').match(text, at)
        if not match:
            raise ValueError(text)
        found.append(match[1].replace('""', '"'))
        at = match.end()
        if at == len(text):
            return found
        if text[at] != ".":
            raise ValueError(text)
        at += 1


def test_sql_takes_every_name_as_one_identifier():
    for name in encodable(name for name in IDENTIFIERS if "\0" not in name):
        assert sql_identifiers(quote_name(name)) == [name]
        assert sql_identifiers(ident(name, name)) == [name, name]


def test_transactional_ids_are_plain_and_differ():
    ids = {transactional_id("g", name, 0) for name in encodable(IDENTIFIERS)}
    assert len(ids) == len(IDENTIFIERS)
    assert all(re.fullmatch(r"[A-Za-z0-9_.~%:-]+", id) for id in ids)


def test_log_lines_stay_one_line_without_escapes():
    for name in IDENTIFIERS:
        line = one_line(f"connector={name}")
        assert len(line.splitlines()) == 1
        assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]", line)


# --- hosts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", hostile.HOSTS)
def test_no_form_of_a_closed_host_gets_through(host):
    assert hosts.host_list(host) is not None
    with pytest.raises((CdcError, psycopg.Error)) as caught:
        hosts.guarded(f"host='{host}'" if host.isalnum() else _conninfo(host))
    assert "could not translate" not in str(caught.value)


def _conninfo(host):
    escaped = host.replace("\\", "\\\\").replace("'", "\\'")
    return f"host='{escaped}' dbname=d"


@pytest.fixture
def look_up(monkeypatch):
    names = dict(hostile.NAMES_THAT_LEAD_ASTRAY)

    def getaddrinfo(host, *_, **__):
        if host not in names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(0, 0, 0, "", (address, 0)) for address in names[host]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return names


@pytest.mark.parametrize("host", hostile.NAMES_THAT_LEAD_ASTRAY)
def test_names_are_judged_by_where_they_lead(look_up, host):
    assert hosts.host_list(host) is None
    with pytest.raises(CdcError) as caught:
        hosts.guarded(f"host={host}")
    assert caught.value.code == "config.host_not_allowed"
    assert not any(address in str(caught.value) for address in look_up[host]), "no map of the network for the asking"


@pytest.mark.parametrize("address", hostile.THIS_MACHINE)
def test_this_machine_is_closed_unless_the_operator_opens_it(look_up, address):
    look_up["db.example.com"] = [address]
    hosts.use(hosts.HostPolicy(loopback=False))
    for host in (address, "db.example.com"):
        with pytest.raises(CdcError, match="this machine"):
            hosts.guarded(f"host={host}")
    hosts.use(hosts.HostPolicy(loopback=True))
    if ipaddress.ip_address(address).is_loopback:
        assert hosts.guarded(f"host={address}")


def test_what_was_judged_is_what_is_connected_to(look_up):
    look_up["db"] = ["10.0.0.1", "10.0.0.2"]
    look_up["standby"] = ["10.0.0.3"]
    found = conninfo_to_dict(hosts.guarded("host=db,standby port=1,2 dbname=d sslmode=verify-full"))
    assert found["hostaddr"] == "10.0.0.1,10.0.0.2,10.0.0.3"
    assert found["host"] == "db,db,standby"
    assert found["port"] == "1,1,2"
    assert found["sslmode"] == "verify-full"
    with pytest.raises(psycopg.OperationalError, match="could not translate host name"):
        hosts.guarded("host=unknown")


def test_an_allow_list_closes_everything_else(look_up):
    look_up.update({"db.corp": ["10.1.0.1"], "db.other": ["10.2.0.1"], "out.corp": ["169.254.169.254"]})
    hosts.use(hosts.HostPolicy(hosts.parse_allowed(["10.1.0.0/16", ".trusted", "exact.example"]), loopback=False))
    assert hosts.guarded("host=db.corp")
    assert hosts.guarded("host=10.1.2.3")
    look_up.update({"a.trusted": ["10.9.0.1"], "exact.example": ["127.0.0.1"], "nottrusted": ["10.9.0.1"]})
    assert hosts.guarded("host=a.trusted")
    assert hosts.guarded("host=exact.example"), "a name that the operator lists may be this machine"
    for host in ("db.other", "10.2.0.1", "out.corp", "nottrusted", "::ffff:10.2.0.1"):
        with pytest.raises(CdcError):
            hosts.guarded(f"host={host}")
    hosts.use(hosts.HostPolicy(hosts.parse_allowed(["0.0.0.0/0"])))
    with pytest.raises(CdcError):
        hosts.guarded("host=169.254.169.254")


@pytest.mark.parametrize("item", ["", " ", "*", "a b", "http://x", "10.0.0.0/40", "a/b", "-x", "10.0.0.300/8"])
def test_an_allow_list_that_means_nothing_is_refused(item):
    with pytest.raises(ValueError, match="no network"):
        hosts.parse_allowed([item])


# --- configs ---------------------------------------------------------------------------------------------------------


def test_no_hostile_config_gets_through():
    catalog = ConnectorCatalog()
    plain = conninfo_to_dict(conninfo(parse_postgres(BASE), "x"))
    for kind, key, value in CONFIGS:
        config = {**BASE, key: value}
        if kind == "refused":
            report, error = outcome(check_keys, catalog, config)
            assert error is not None or report.errors, (key, value)
            continue
        assert not check_keys(catalog, config).errors, (key, value)
        found = conninfo_to_dict(conninfo(parse_postgres(config), "x"))
        part = key.removeprefix("database.")
        expected = {**plain, part: value if part == "password" else value.strip()}
        assert found == expected, (key, value)


# --- paths -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def room(tmp_path):
    """A folder that is open, a file beside it that is not, and links that lead there."""
    root = tmp_path / "root"
    root.mkdir()
    for place in (tmp_path / "secret", tmp_path / "root-other", tmp_path / "rootx"):
        if place.name == "secret":
            place.write_text("hunter2")
        else:
            place.mkdir()
            (place / "secret").write_text("hunter2")
    (root / "pw").write_text("fine")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to(tmp_path)
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "fifo")
    return root


def test_no_path_leads_out_of_the_open_folder(room):
    rules = {FILE_PATHS_KEY: str(room), DIR_PATHS_KEY: str(room), reach.TLS_PATHS: str(room)}
    for path in hostile.paths(str(room), str(room.parent / "secret")):
        folder, _, name = path.rpartition("/")
        for reference in (
            f"${{file:{path}}}",
            f"${{file:{path}:a}}",
            f"${{dir:{folder}:{name}}}",
            f"${{dir:{room}:{path}}}",
        ):
            if "}" in path:
                continue
            with pytest.raises(CdcError) as caught:
                resolve({"k": reference}, rules)
            assert caught.value.code == "config.reference_unresolved", path
            assert "hunter2" not in str(caught.value)
        _, error = outcome(reach.admit, {"database.sslrootcert": path}, rules)
        if error is None:
            assert not path or os.path.realpath(path).startswith(str(room)), path
        else:
            assert error.code == "config.path_not_allowed"
        if not path.startswith("/") or "\0" in path:
            continue  # refused by the key's own check
        found, error = outcome(allowed_path, path, [str(room)])
        if error is None:
            assert os.path.realpath(found.parent).startswith(str(room)), path
        else:
            assert error.code == "file.path_not_allowed"


def test_whether_a_file_is_there_is_told_for_open_folders_only(room):
    rules = {FILE_PATHS_KEY: str(room)}

    def told(path):
        with pytest.raises(CdcError) as caught:
            resolve({"k": f"${{file:{path}}}"}, rules)
        return caught.value.message

    assert told("/etc/passwd") == told("/etc/no-such-file") == told(room.parent / "secret")
    assert told(room / "missing") != told("/etc/passwd")


def test_one_file_of_a_folder_is_one_value_as_kubernetes_mounts_it(room):
    data = room / "..2026_01"
    data.mkdir()
    (data / "password").write_text("hunter3\n")
    (room / "..data").symlink_to("..2026_01")
    (room / "password").symlink_to("..data/password")
    rules = {DIR_PATHS_KEY: str(room)}
    assert resolve({"k": f"${{dir:{room}:password}}"}, rules) == {"k": "hunter3"}
    assert resolve({"k": f"${{dir:{room}/:pw}}-x"}, rules) == {"k": "fine-x"}


def test_certificates_of_connectors_lie_where_the_operator_says(room):
    rules = {reach.TLS_PATHS: str(room)}
    reach.admit({"database.sslrootcert": str(room / "pw"), "warehouse.sslrootcert": "system"}, rules)
    for path in ("/etc/passwd", str(room / "link"), "pw"):
        with pytest.raises(CdcError, match="outside"):
            reach.admit({"database.sslkey": path}, rules)
    reach.admit({"database.sslkey": "/etc/passwd"}, {})


@pytest.mark.parametrize(
    ("rule", "config", "key"),
    [
        ("encrypted", {"database.hostname": "db.example"}, "database.sslmode"),
        ("encrypted", {"database.hostname": "db.example", "database.sslmode": "prefer"}, "database.sslmode"),
        ("encrypted", {"database.hostname": "127.0.0.1,10.0.0.1"}, "database.sslmode"),
        ("encrypted", {"database.hostname": "localhost.evil.example"}, "database.sslmode"),
        ("encrypted", {"warehouse.hostname": "w", "warehouse.sslmode": "allow"}, "warehouse.sslmode"),
        ("verified", {"database.hostname": "db.example", "database.sslmode": "verify-ca"}, "database.sslmode"),
        ("encrypted", {"database.hostname": "db.example", "database.sslmode": "require"}, None),
        ("verified", {"database.hostname": "db.example", "database.sslmode": " verify-full"}, None),
        ("verified", {"database.hostname": "127.0.0.1, localhost,::1"}, None),
        ("any", {"database.hostname": "db.example", "database.sslmode": "disable"}, None),
        ("encrypted", {"connector.class": "mysql", "database.hostname": "db"}, "database.ssl.mode"),
        ("encrypted", {"connector.class": "mariadb", "database.hostname": "db", "database.ssl.mode": "trust"}, None),
        (
            "verified",
            {"connector.class": "mysql", "database.hostname": "db", "database.sslmode": "verify-full"},
            "database.ssl.mode",
        ),
        (
            "verified",
            {"connector.class": "mysql", "database.hostname": "db", "database.ssl.mode": "verify_identity"},
            None,
        ),
        ("verified", {"topic.prefix": "t"}, None),
    ],
)
def test_an_operator_may_ask_for_tls_of_every_connector(rule, config, key):
    _, error = outcome(resolve, config, {reach.TLS: rule})
    assert (error and (error.code, error.where)) == (key and ("config.tls_not_enough", {"key": key}))


def test_a_tenant_cannot_talk_himself_out_of_tls(monkeypatch):
    monkeypatch.setenv("HOST_PASSWORD", "db.example")
    config = {
        "database.hostname": "${env:HOST_PASSWORD}",
        "connector.tls": "any",
        "database.sslmode": "${env:X_PASSWORD}",
    }
    monkeypatch.setenv("X_PASSWORD", "disable")
    with pytest.raises(CdcError, match="not enough"):
        resolve(config, {reach.TLS: "encrypted"})
