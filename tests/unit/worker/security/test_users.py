"""The file of users: what is refused in it, what the command writes, and where a worker may listen without one."""

import json
import stat

import pytest
import yaml
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.cli.commands.auth import auth
from cdcworker.worker.config.worker_properties import parse as parse_worker
from cdcworker.worker.security import credentials, users
from cdcworker.worker.server.wiring import gate_of
from click.testing import CliRunner

HASH = credentials.hashed("x", log_n=10)
WORKER = {"bootstrap.servers": "k:9092", "group.id": "g", "rest.advertised.host.name": "me"}


def test_a_hash_matches_its_secret_and_no_other():
    assert credentials.matches("x", HASH)
    for secret, stored in (("y", HASH), ("", HASH), ("x", ""), ("x", "x"), ("x", HASH[:-1]), ("x", HASH + "A")):
        assert not credentials.matches(secret, stored)
    assert credentials.hashed("x", log_n=10) != HASH


def test_default_hashes_are_slow():
    assert "$ln=14,r=8,p=1$" in credentials.hashed("x")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([], "users:"),
        ({"users": {}}, "users:"),
        ({"users": [1]}, "object"),
        ({"users": [{"grants": []}]}, "name"),
        ({"users": [{"name": "a:b"}]}, "name"),
        ({"users": [{"name": "a\nb"}]}, "name"),
        ({"users": [{"name": "a", "pasword": "x"}]}, "pasword"),
        ({"users": [{"name": "a", "password": "plain text"}]}, "never the password"),
        ({"users": [{"name": "a", "grants": ["root"]}]}, "grant"),
        ({"users": [{"name": "a"}, {"name": "a"}]}, "two users"),
        ({"users": [{"name": "a", "tokens": [{"id": "1", "hash": HASH}]}]}, "tokens[0]"),
        ({"users": [{"name": "a", "tokens": [{"id": "0" * 12, "hash": HASH, "expires": "soon"}]}]}, "expires"),
        ({"users": [{"name": "a", "tokens": [{"id": "0" * 12, "hash": HASH}] * 2}]}, "twice"),
        ({"users": [{"name": n, "certificates": ["c"]} for n in "ab"]}, "two users"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_place(tmp_path, content, told):
    path = tmp_path / "users.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(CdcError) as caught:
        users.read(path)
    assert caught.value.code == "auth.file_invalid"
    assert told in caught.value.message
    assert "plain text" not in str(caught.value)


def test_a_file_that_everybody_may_write_is_refused(tmp_path):
    path = tmp_path / "users.yaml"
    path.write_text("users: []")
    path.chmod(0o666)
    with pytest.raises(CdcError, match="everybody may write"):
        users.read(path)


def test_a_missing_or_torn_file_keeps_a_worker_from_starting(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        config, _ = parse_worker({**WORKER, "rest.auth.file": str(path)})
        with pytest.raises(CdcError, match="cannot be read"):
            gate_of(config.values)


def run(*arguments, text=""):
    done = CliRunner().invoke(auth, [*map(str, arguments), "--json"], input=text)
    return done.exit_code, json.loads(done.stdout)["result"] if done.exit_code == 0 else done.output


def test_the_command_writes_what_workers_read(tmp_path):
    path = tmp_path / "users.yaml"
    code, made = run("add", path, "ops", "--grant", "operate:shop-", "--grant", "schemas")
    assert code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    code, other = run("token", path, "ops", "--days", "30")
    first, second = (credentials.token_parts(item["token"]) for item in (made, other))
    assert first
    assert second
    found = users.read(path)
    for id, secret in (first, second):
        assert credentials.matches(secret, found.by_token[id][1].hash)
        assert secret not in path.read_text()
    assert found.by_token[second[0]][1].expires_s
    assert [str(grant) for grant in found.by_name["ops"].grants] == ["operate:shop-", "schemas"]
    assert run("revoke", path, first[0])[0] == 0
    assert set(users.read(path).by_token) == {second[0]}
    assert run("add", path, "basic", "--grant", "read", "--password", text="pw\npw\n")[0] == 0
    assert credentials.matches("pw", users.read(path).by_name["basic"].password)
    listed = run("list", path)[1]
    assert [user["name"] for user in listed["users"]] == ["ops", "basic"]
    assert run("revoke", path, "ops")[0] == 0
    assert list(users.read(path).by_name) == ["basic"]
    for arguments in (("add", path, "basic", "--grant", "read"), ("token", path, "no"), ("revoke", path, "no")):
        assert run(*arguments)[0] == 2
    assert run("add", path, "x", "--grant", "everything")[0] == 2


@pytest.mark.parametrize(
    "listener", ["http://0.0.0.0:1", "http://:1", "http://[::]:1", "http://10.0.0.1:1", "http://db:1"]
)
def test_the_start_matrix(tmp_path, listener):
    """Open to the network: only with a file of users, or when the operator said so, which is told."""
    with pytest.raises(CdcError) as caught:
        parse_worker({**WORKER, "listeners": listener})
    assert caught.value.code == "worker.insecure_bind"
    assert "rest.auth.file" in caught.value.hint
    _, warnings = parse_worker({**WORKER, "listeners": listener, "rest.insecure.bind": "true"})
    assert any("everybody" in warning for warning in warnings)
    _, warnings = parse_worker({**WORKER, "listeners": listener, "rest.auth.file": "/users.yaml"})
    assert ["in the clear" in warning for warning in warnings] == [True, False]
    assert "inter.worker.secret.file" in warnings[1]


@pytest.mark.parametrize(
    "listener", ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "http://127.0.0.9:1"]
)
def test_the_loopback_interface_needs_no_users(listener):
    assert parse_worker({**WORKER, "listeners": listener})[1] == []
