"""Twenty-nine secrets in every place that takes one, looked for in everything that a worker says: REST, logs, topics, its
children's arguments and environments, a support bundle. None is found."""

import base64
import json
import os
import re
import secrets
import subprocess
import sys
import tarfile
from functools import partial
from pathlib import Path

import httpx
import psycopg
import pytest
import yaml
from cdcworker.worker.security.credentials import hashed, new_token
from cdcworker.worker.server.application import ENDPOINTS

from tests.integration import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]


STORED = (
    "source password", "ssl password", "signal password", "history jaas", "registry login", "mask salt", "setting inside",
)  # fmt: skip
"""Given to the worker as they are, in a connector's config: the config log has to hold them, and nothing else may."""
OUT_OF_SIGHT = (
    "environment secret", "foreign variable", "file secret", "folder secret", "file outside", "kafka login", "lock digest",
    "key password", "basic password", "role by reference",
)  # fmt: skip
"""Known to the worker's process, or beside it, and to nobody who asks."""
SENT = (
    "bad token", "bad password", "other scheme", "header", "cookie", "query", "user agent", "refused config", "torn json",
    "patched", "validated", "masked place",
)  # fmt: skip
"""Sent over REST and turned away, or of no concern."""


@pytest.fixture
def canaries():
    found = {
        name: f"canary{number:02d}{secrets.token_hex(8)}" for number, name in enumerate((*STORED, *OUT_OF_SIGHT, *SENT))
    }
    assert len(found) == 29
    return found


@pytest.fixture
def worker(kafka, tmp_path, canaries, monkeypatch):
    """Closed, with an audit topic; its one user has a token and a password."""
    id, token, hash = new_token()
    entry = {"name": "ops", "grants": ["admin"], "tokens": [{"id": id, "hash": hash}]}
    entry["password"] = hashed(canaries["basic password"])
    (tmp_path / "users.yaml").write_text(yaml.safe_dump({"users": [entry]}))
    monkeypatch.setenv("CDC_SECRET_CANARY", canaries["environment secret"])
    monkeypatch.setenv("CDC_SECRET_ROLE", canaries["role by reference"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", canaries["foreign variable"])
    monkeypatch.setenv("CDC_LISTENERS_HTTPS_SSL_KEY_PASSWORD", canaries["key password"])
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "file").write_text(f"password={canaries['file secret']}\n")
    (tmp_path / "open" / "folder").write_text(canaries["folder secret"])
    (tmp_path / "outside").write_text(canaries["file outside"])
    group = f"c{secrets.token_hex(4)}"
    made = one_worker.Worker(
        tmp_path,
        kafka.bootstrap,
        group,
        **{
            "rest.auth.file": str(tmp_path / "users.yaml"),
            "audit.topic": f"{group}.audit",
            "sasl.password": canaries["kafka login"],
            "zookeeper.digest": f"u:{canaries['lock digest']}",
            "config.providers.file.param.allowed.paths": str(tmp_path / "open"),
            "config.providers.dir.param.allowed.paths": str(tmp_path / "open"),
            "log.level": "DEBUG",
        },
    )
    made.token, made.folder = token, tmp_path
    canaries["token"] = token
    yield made
    made.kill()


@pytest.fixture
def second(worker, kafka, tmp_path):
    """Another worker of the cluster, with the same users."""
    users = {"rest.auth.file": str(tmp_path / "users.yaml")}
    made = one_worker.Worker(tmp_path, kafka.bootstrap, worker.group, "w2", **users)
    yield made
    made.kill()


@pytest.fixture
def ask(worker):
    def ask(method, path, body=None, **options):
        headers = {"Authorization": f"Bearer {worker.token}", **options.pop("headers", {})}
        return httpx.request(method, worker.url + path, json=body, headers=headers, timeout=30.0, **options)

    return ask


def source(postgres, canaries):
    """A connector that runs, by a role whose password is a canary, and whose name, read by a reference, is another."""
    database = postgres.create_database()
    role, name = canaries["role by reference"], secrets.token_hex(4)
    with psycopg.connect(postgres.dsn(database), autocommit=True) as admin:
        admin.execute(f"create role {role} superuser login password '{canaries['source password']}'")
        admin.execute("create table t (id int primary key, v text)")
        admin.execute("insert into t values (1, 'one')")
        host, port = admin.info.host, admin.info.port
    return {
        "connector.class": "postgres",
        "database.hostname": host,
        "database.port": str(port),
        "database.user": "${env:CDC_SECRET_ROLE}",
        "database.password": canaries["source password"],
        "database.dbname": database,
        "database.sslpassword": canaries["ssl password"],
        "signal.kafka.sasl.password": canaries["signal password"],
        "schema.history.internal.producer.sasl.jaas.config": canaries["history jaas"],
        # Under names that tell nothing.
        "value.converter.schema.registry.url": f"http://u:{canaries['registry login']}@127.0.0.1:1",
        f"column.mask.hash.SHA-256.with.salt.{canaries['mask salt']}": "public.t.v",
        "header.converter.settings": f"url=jdbc:x://h/d?user=a&password={canaries['setting inside']}",
        "topic.prefix": f"t{name}",
        "slot.name": f"s{name}",
    }


def turned_away(ask, worker, canaries, good):
    """Requests with secrets in all the places of a request. What each says back is returned."""
    url = worker.url
    basic = base64.b64encode(f"ops:{canaries['bad password']}".encode()).decode()
    wrong = {**good, "database.password": canaries["refused config"], "database.port": "x"}
    folder = worker.folder
    # References in fields whose content is told as well: what they lead to must not be.
    open_ = {
        "database.password": f"${{file:{folder}/open/file:password}}",
        "database.sslpassword": f"${{dir:{folder}/open:folder}}",
        "database.dbname": "${env:CDC_SECRET_CANARY}",
    }
    closed = ("${env:AWS_SECRET_ACCESS_KEY}", f"${{file:{folder}/outside}}")
    validate = "/connector-plugins/postgres/config/validate"
    yield httpx.get(url + "/connectors", headers={"Authorization": f"Bearer {canaries['bad token']}"})
    yield httpx.get(url + "/connectors", headers={"Authorization": f"Basic {basic}"})
    yield httpx.get(url + "/connectors", headers={"Authorization": f"X {canaries['other scheme']}"})
    sent = {"X-Api-Key": canaries["header"], "Cookie": f"s={canaries['cookie']}", "User-Agent": canaries["user agent"]}
    yield ask("GET", f"/connectors?password={canaries['query']}", headers=sent)
    yield ask("PUT", "/connectors/wrong/config", wrong)
    yield ask("POST", "/connectors", content=f'{{"config": {{"password": "{canaries["torn json"]}"'.encode())
    yield ask("PATCH", "/connectors/good/config", {"database.port": "x", "database.password": canaries["patched"]})
    yield ask("PUT", validate, {**good, "name": "v", "database.password": canaries["validated"]})
    yield ask(
        "PUT",
        validate,
        {**good, "name": "good", "database.password": "****", "database.user": canaries["masked place"]},
    )
    yield ask("PUT", validate, {**good, "name": "o", **open_})
    yield ask("PUT", validate, {**good, "name": "o", "database.dbname": open_["database.dbname"]})
    for reference in closed:
        yield ask("PUT", validate, {**good, "name": "c", "database.password": reference})


def everything(ask, worker):
    """(where, text) of all that is told: REST, the log, topics, processes."""
    for endpoint in ENDPOINTS:
        if endpoint.method == "GET" and endpoint.produces != "text/event-stream":
            path = re.sub(r"\{\w+:int\}", "0", endpoint.path.replace("{connector}", "good")).replace(
                "{plugin}", "postgres"
            )
            yield endpoint.path, ask("GET", re.sub(r"\{\w+\}", "root", path)).text
    rows = "/v1/connectors/good/changes?from=beginning&follow=false"
    yield rows, ask("GET", rows).text
    for query in ("?expand=info&expand=status", ""):
        yield "/connectors", ask("GET", f"/connectors{query}").text
    yield "log", worker.log.read_text()
    for topic in ("configs", "status", "offsets", "schemas", "audit"):
        for record in worker.read(f"{worker.group}.{topic}"):
            parts = (record.key(), record.value(), *(value for _, value in record.headers() or ()))
            yield topic, b" ".join(part or b"" for part in parts).decode("utf-8", "replace")
    group = Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children")
    pids, todo = [], [worker.process.pid]
    while todo:
        pids.append(todo.pop())
        children = group.parents[3] / str(pids[-1]) / "task" / str(pids[-1]) / "children"
        todo += map(int, children.read_text().split() if children.exists() else ())
    for pid in filter(partial(is_itself, worker.process.pid), pids):
        try:
            limits, *told = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("limits", "cmdline", "environ"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        assert re.search(rb"Max core file size +[01] ", limits), "a picture of the memory would hold all of them"
        whose = "the worker" if pid == worker.process.pid else pid
        for name, text in zip(("cmdline", "environ"), told, strict=True):
            yield f"{name} of {whose}", text.decode("utf-8", "replace")


def is_itself(worker, pid):
    """Whether a process is more than a copy of the worker that is about to become something else."""
    command = [Path(f"/proc/{one}/cmdline") for one in (pid, worker)]
    return pid == worker or (command[0].exists() and command[0].read_bytes() != command[1].read_bytes())


def results(records):
    return {json.loads(record.value())["result"] for record in records}


def bundle(worker):
    """(name, text) of each file of a support bundle."""
    path = worker.folder / "bundle.tar.gz"
    argv = [sys.executable, "-m", "cdcworker.worker.cli.main", "support-bundle", str(path), "--url", worker.url]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CDC_", "AWS_"))}
    done = subprocess.run(
        argv, env={**environment, "CDC_TOKEN": worker.token}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    yield "what the bundle's command says", done.stdout + done.stderr
    with tarfile.open(path) as found:
        for member in found:
            yield f"bundle {member.name}", found.extractfile(member).read().decode("utf-8", "replace")


def test_no_canary_is_heard(worker, ask, postgres, canaries):
    good = source(postgres, canaries)
    worker.wait_ready()
    made = worker.wait(
        lambda: (r := ask("PUT", "/connectors/good/config", good)).status_code in (200, 201) and r, "a leader"
    )
    worker.wait(lambda: ask("GET", "/connectors/good/status").json()["tasks"][0]["state"] == "RUNNING", "the task")
    heard = [("answer", made.text)]
    heard += [(f"answer {answer.status_code}", answer.text) for answer in turned_away(ask, worker, canaries, good)]
    read_back = ask("GET", "/connectors/good/config").json()
    assert read_back["database.password"] == "****"
    assert ask("PUT", "/connectors/good/config", read_back).status_code == 200, "what was read can be written back"
    audit = f"{worker.group}.audit"
    worker.wait(lambda: {"done", "denied", "refused"} <= results(worker.read(audit)), "the audit topic")
    heard += everything(ask, worker)
    bundled = dict(bundle(worker))
    (examined,) = [text for name, text in bundled.items() if name.endswith("connectors/good/doctor.json")]
    assert "${env:CDC_SECRET_ROLE}" in examined, "the doctor logs in as the role and says so"
    heard += bundled.items()
    entries = [json.loads(record.value()) for record in worker.read(audit)]
    assert {entry["who"] for entry in entries if entry["result"] == "done"} == {"ops"}
    # A worker without a leader, or a slow one, has told of failures too.
    assert results(worker.read(audit)) <= {"done", "denied", "refused", "failed"}
    session_keys = [
        item["key"]
        for record in worker.read(f"{worker.group}.configs")
        if record.key() == b"session-key"
        for item in json.loads(record.value())["keys"]
    ]
    assert session_keys
    found = [
        (name, where)
        for name, secret in [*canaries.items(), *(("session key", key) for key in session_keys)]
        for where, text in heard
        if secret in text and not allowed(name, where)
    ]
    assert found == []


def test_a_follower_has_the_leader_do_what_its_caller_may(worker, second, ask):
    """The request is signed with the key of the config log, and stands in the trail of both workers."""
    config = {"connector.class": "datagen", "topic.prefix": "x", "tables": "1", "rows.per.second": "1"}
    for one in (worker, second):
        one.wait_ready()
    made = worker.wait(
        lambda: (r := ask("PUT", "/connectors/d/config", config)).status_code in (200, 201) and r, "a leader"
    )
    assert made.json()["name"] == "d"
    token = {"Authorization": f"Bearer {worker.token}"}
    configs = f"{worker.group}.configs"
    worker.wait(lambda: any(record.key() == b"session-key" for record in worker.read(configs)), "a key to sign with")
    for number, one in enumerate((worker, second)):
        # Who has had something changed has read up to there, the key included; before, callers vouch for themselves.
        one.wait(
            lambda url=one.url: httpx.put(f"{url}/connectors/d/resume", headers=token).status_code == 202, "resume"
        )
        headers = {**token, "X-Request-Id": f"pause-{number}"}
        paused = one.wait(
            lambda url=one.url, sent=headers: httpx.put(f"{url}/connectors/d/pause", headers=sent).status_code == 202,
            "pause",
        )
        assert paused
        assert httpx.put(f"{one.url}/connectors/d/pause").status_code == 401
        assert httpx.put(f"{one.url}/connectors/d/fence", headers=token).status_code == 400
    logs = [one.log.read_text() for one in (worker, second)]
    heard = [["pause-0" in text, "pause-1" in text] for text in logs]
    leads = heard.index([True, True])
    assert heard[1 - leads] == [leads == 1, leads == 0], "asked for at the follower, carried out at the leader too"


def allowed(name, where):
    """Where a secret has to be: stored ones and the session key in the config log, variables in the environment that
    the operator gave, of which children get what references may read. A user's name is no secret."""
    if name in (*STORED, "session key"):
        return where == "configs"
    if name in ("foreign variable", "key password"):
        return where == "environ of the worker"
    if name in ("environment secret", "role by reference"):
        return where.startswith("environ of")
    return name == "masked place" and where.startswith("answer")
