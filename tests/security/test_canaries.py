"""Secrets in every place that takes one, looked for in everything that a worker says: REST, events, logs, topics, its
children's arguments and environments, a support bundle. None is found."""

import base64
import contextlib
import json
import os
import re
import secrets
import select
import socket
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import psycopg
import pytest
import yaml
from cdcworker.worker.cli.client.remote import detailed
from cdcworker.worker.security.credentials import hashed, new_token

from tests import plain_http
from tests.app_in_memory import operations, path_of
from tests.integration import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]


STORED = (
    "source password", "ssl password", "signal password", "history jaas", "registry login", "mask salt", "setting inside",
    "warehouse password", "catalog secret", "spark secret",
)  # fmt: skip
"""Given to the worker as they are, in a connector's config: the config log has to hold them, and nothing else may."""
OUT_OF_SIGHT = (
    "environment secret", "foreign variable", "file secret", "folder secret", "file outside", "kafka login", "lock digest",
    "key password", "basic password", "role by reference", "secret between workers",
)  # fmt: skip
"""Known to the worker's process, or beside it, and to nobody who asks."""
SENT = (
    "bad token", "bad password", "other scheme", "header", "cookie", "query", "user agent", "refused config", "torn json",
    "patched", "validated", "masked place",
)  # fmt: skip
"""Sent over REST and turned away, or of no concern."""
STREAMS = ("GET /v1/events", "GET /v1/connectors/{connector}/changes")
"""Operations whose answers do not end by themselves: events are followed from the start, rows are read up to the last one."""
ENDING = ("DELETE /connectors/{connector}", "POST /v1/drain")
"""Operations behind which nothing else can be asked. Nobody drains the worker: it would be gone."""
SINKS = ("out", "lake")
BODIES = {"CreateSnapshot": {"tables": ["public.t"]}, "Schema": {"schema": '"string"'}}
MASTER = "spark://127.0.0.1:1"


@pytest.fixture
def canaries():
    found = {
        name: f"canary{number:02d}{secrets.token_hex(8)}" for number, name in enumerate((*STORED, *OUT_OF_SIGHT, *SENT))
    }
    # A secret between workers has 32 characters or more.
    name = "secret between workers"
    return {**found, name: found[name] + secrets.token_hex(8)}


@pytest.fixture
def worker(kafka, tmp_path, canaries, monkeypatch, request):
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
    (tmp_path / "between").write_text(canaries["secret between workers"] + "\n")
    (tmp_path / "between").chmod(0o600)
    group = f"c{secrets.token_hex(4)}"
    places = {"inter.worker.secret.file": str(tmp_path / "between"), "file.connector.paths": str(tmp_path / "open")}
    if request.node.get_closest_marker("long"):
        # The catalog of a lake that runs says itself where files lie: connectors may read all of them then.
        places = {"file.connector.paths": "/"}
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
            **places,
            "connector.spark.masters": MASTER,
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
    files = {"rest.auth.file": "users.yaml", "inter.worker.secret.file": "between"}
    files = {name: str(tmp_path / file) for name, file in files.items()}
    made = one_worker.Worker(tmp_path, kafka.bootstrap, worker.group, "w2", **files)
    yield made
    made.kill()


@pytest.fixture
def ask(worker):
    def ask(method, path, body=None, **options):
        headers = {"Authorization": f"Bearer {worker.token}", **options.pop("headers", {})}
        limit_s = options.pop("timeout", 30.0)
        return plain_http.request(
            method, worker.url + detailed(path), json=body, headers=headers, timeout=limit_s, **options
        )

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
        "value.converter.schema.registry.ids": "own",
        "value.converter.schema.registry.url": f"http://u:{canaries['registry login']}@127.0.0.1:1",
        f"column.mask.hash.SHA-256.with.salt.{canaries['mask salt']}": "public.t.v",
        "header.converter.settings": f"url=jdbc:x://h/d?user=a&password={canaries['setting inside']}",
        "topic.prefix": f"t{name}",
        "slot.name": f"s{name}",
    }


def sinks(postgres, canaries, good):
    """A sink into the database of the source, by a role whose password is a canary, and one into a lake, on a cluster of
    Spark's: name and config of each."""
    user = f"out{secrets.token_hex(4)}"
    with psycopg.connect(postgres.dsn(good["database.dbname"]), autocommit=True) as admin:
        admin.execute(f"create role {user} superuser login password '{canaries['warehouse password']}'")
    base = {"connector.class": "spark", "topics": f"{good['topic.prefix']}.public.t", "task.restart.max": "0"}
    yield (
        "out",
        {
            **base,
            "warehouse.hostname": good["database.hostname"],
            "warehouse.port": good["database.port"],
            "warehouse.user": user,
            "warehouse.password": canaries["warehouse password"],
            "warehouse.dbname": good["database.dbname"],
        },
    )
    yield (
        "lake",
        {
            **base,
            "warehouse": "iceberg",
            "warehouse.catalog": "rest",
            "warehouse.catalog.uri": "http://127.0.0.1:1",
            "warehouse.catalog.secrets": f"token={canaries['catalog secret']}",
            "spark.launcher": "client",
            "spark.master": MASTER,
            "spark.driver.host": "127.0.0.1",
            "spark.authenticate.secret": canaries["spark secret"],
        },
    )


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
    yield plain_http.get(url + "/connectors", headers={"Authorization": f"Bearer {canaries['bad token']}"})
    yield plain_http.get(url + "/connectors", headers={"Authorization": f"Basic {basic}"})
    yield plain_http.get(url + "/connectors", headers={"Authorization": f"X {canaries['other scheme']}"})
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


def read_answers(ask, subject):
    """(where, text) of every answer that changes nothing."""
    for operation in operations():
        if operation.method == "GET" and str(operation) not in STREAMS:
            for path in paths_of(operation, subject, ("good", "out")):
                yield f"GET {path}", ask("GET", path).text
    for name in ("good", *SINKS):
        for path in ("config", "tasks", "tasks-config", "status?details=true"):
            yield f"GET {name}", ask("GET", f"/connectors/{name}/{path}").text
    rows = "/v1/connectors/good/changes?from=beginning&follow=false"
    yield rows, ask("GET", rows).text
    for query in ("?expand=info&expand=status", ""):
        yield "/connectors", ask("GET", f"/connectors{query}").text


def asked_of_children(ask):
    """(where, text) of answers that processes with the secrets of connectors give, while they run."""
    for path, body in (
        ("verify", None),
        ("dead-letters/redrive?dry_run=true", None),
        ("dead-letters/redrive", None),
        ("snapshots", BODIES["CreateSnapshot"]),
    ):
        for name in ("good", "out"):
            answer = ask("POST", f"/v1/connectors/{name}/{path}", body)
            assert (answer.status_code < 300) == (name == ("good" if path == "snapshots" else "out")), answer.text
            yield f"POST {name} {path}", answer.text


def changing_answers(ask, subject):
    """(where, text) of the answer of every other operation; behind them no connector is left."""
    every = [one for one in operations() if one.method != "GET" and str(one) != ENDING[-1]]
    for operation in sorted(every, key=lambda one: str(one) in ENDING):
        for path in paths_of(operation, subject, ("good", "out")):
            answer = ask(operation.method, path, BODIES.get(operation.body, {}) if operation.body else None)
            assert answer.status_code < 500, (operation, answer.text)
            assert answer.status_code not in (401, 403)
            # Schemas are never deleted.
            assert answer.status_code != 405 or operation.is_registry
            yield f"{operation}", answer.text


def paths_of(operation, subject, connectors):
    for name in connectors if "{connector}" in operation.path else ("",):
        yield path_of(operation.path, connector=name, subject=subject)


def listening(worker):
    """A connection on which events come from now on."""
    place = httpx.URL(worker.url)
    made = socket.create_connection((place.host, place.port), 30.0)
    head = ("GET /v1/events HTTP/1.1", f"Host: {place.host}", f"Authorization: Bearer {worker.token}")
    made.sendall("\r\n".join((*head, "", "")).encode())
    return made


def events_heard(listened):
    parts = []
    while select.select([listened], [], [], 0.5)[0] and (part := listened.recv(65_536)):
        parts.append(part)
    return b"".join(parts).decode("utf-8", "replace")


def log_and_topics(worker):
    yield "log", worker.log.read_text()
    for topic in ("configs", "status", "offsets", "schemas", "coordination", "audit"):
        for record in worker.read(f"{worker.group}.{topic}"):
            parts = (record.key(), record.value(), *(value for _, value in record.headers() or ()))
            yield topic, b" ".join(part or b"" for part in parts).decode("utf-8", "replace")


def processes(worker):
    """(where, text) of the arguments and the environment of the worker and of all processes below it."""
    pids, todo = [], [worker.process.pid]
    while todo:
        pids.append(todo.pop())
        todo += children_of(pids[-1])
    for pid in filter(partial(is_itself, worker.process.pid), pids):
        try:
            limits, *told = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("limits", "cmdline", "environ"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        assert re.search(rb"Max core file size +[01] ", limits), "a picture of the memory would hold all of them"
        program = Path(told[0].split(b"\0")[0].decode()).name
        whose = "the worker" if pid == worker.process.pid else f"{program} {pid}"
        for name, text in zip(("cmdline", "environ"), told, strict=True):
            yield f"{name} of {whose}", text.decode("utf-8", "replace")


@contextlib.contextmanager
def watched(worker):
    """Gathers what `processes` tells, as long as the context lasts: of processes that end soon, too."""
    seen, over = set(), threading.Event()

    def look():
        while not over.wait(0.1):
            seen.update(processes(worker))

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield seen
        finally:
            over.set()
            looking.result()


def javas(seen):
    """The processes of Java among those that were seen."""
    return {where for where, _ in list(seen) if re.fullmatch(r"cmdline of java \d+", where)}


def children_of(pid):
    """The processes that any thread of a process has started."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        # A thread or the process may end meanwhile.
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def is_itself(worker, pid):
    """Whether a process is more than a copy of the worker that is about to become something else."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        ours, its = (Path(f"/proc/{one}/cmdline").read_bytes() for one in (worker, pid))
        return pid == worker or its != ours
    return False  # it has ended meanwhile


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


def start(worker, ask, good):
    """Returns the answer to the creation of the source, whose task runs then."""
    worker.wait_ready()
    made = worker.wait(
        lambda: (r := ask("PUT", "/connectors/good/config", good)).status_code in (200, 201) and r, "a leader"
    )
    worker.wait(lambda: state_of(ask, "good") == "RUNNING", "the task")
    return made


def state_of(ask, name):
    return ask("GET", f"/connectors/{name}/status").json()["tasks"][0]["state"]


def session_keys(worker):
    return [
        item["key"]
        for record in worker.read(f"{worker.group}.configs")
        if record.key() == b"session-key"
        for item in json.loads(record.value())["keys"]
    ]


def leaks(heard, canaries, keys):
    """(name, where) of each secret that was heard where it has no place."""
    known = [*canaries.items(), *(("session key", key) for key in keys)]
    return [
        (name, where) for name, secret in known for where, text in heard if secret in text and not allowed(name, where)
    ]


def test_no_canary_is_heard(worker, ask, postgres, canaries):
    good = source(postgres, canaries)
    made = start(worker, ask, good)
    listened = listening(worker)
    heard = [("answer", made.text)]
    for name, config in sinks(postgres, canaries, good):
        body = {"name": name, "config": config, "initial_state": "STOPPED"}
        answer = ask("POST", f"/connectors?validate={'true' if name == 'out' else 'false'}", body)
        assert answer.status_code == 201, answer.text
        heard.append(("answer", answer.text))
    heard += [(f"answer {answer.status_code}", answer.text) for answer in turned_away(ask, worker, canaries, good)]
    read_back = ask("GET", "/connectors/good/config").json()
    assert read_back["database.password"] == "****"
    assert ask("PUT", "/connectors/good/config", read_back).status_code == 200, "what was read can be written back"
    audit = f"{worker.group}.audit"
    worker.wait(lambda: {"done", "denied", "refused"} <= results(worker.read(audit)), "the audit topic")
    subject = f"{good['topic.prefix']}.public.t-value"
    worker.wait(lambda: ask("GET", f"/subjects/{subject}/versions/1").status_code == 200, "the table's schema")
    heard += asked_of_children(ask)
    heard += processes(worker)
    heard += read_answers(ask, subject)
    bundled = dict(bundle(worker))
    (examined,) = [text for name, text in bundled.items() if name.endswith("connectors/good/doctor.json")]
    assert "${env:CDC_SECRET_ROLE}" in examined, "the doctor logs in as the role and says so"
    heard += bundled.items()
    heard += changing_answers(ask, subject)
    heard += log_and_topics(worker)
    heard += processes(worker)
    heard.append(("events", events_heard(listened)))
    listened.close()
    entries = [json.loads(record.value()) for record in worker.read(audit)]
    assert {entry["who"] for entry in entries if entry["result"] == "done"} == {"ops"}
    # A worker without a leader, or a slow one, has told of failures too.
    assert results(worker.read(audit)) <= {"done", "denied", "refused", "failed"}
    keys = session_keys(worker)
    assert keys
    assert leaks(heard, canaries, keys) == []


@pytest.mark.spark
@pytest.mark.iceberg
@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_canary_is_heard_where_java_runs(worker, ask, postgres, canaries):
    """Java's arguments and environment are seen while it starts, runs, fails to find its cluster, and answers requests."""
    good = source(postgres, canaries)
    heard = [("answer", start(worker, ask, good).text)]
    for name, config in sinks(postgres, canaries, good):
        answer = ask("PUT", f"/connectors/{name}/config?validate=false", config)
        assert answer.status_code == 201, answer.text
        heard.append(("answer", answer.text))

    def settled():
        return state_of(ask, "out") == "RUNNING" and state_of(ask, "lake") == "FAILED"

    with watched(worker) as seen:
        worker.wait(settled, lambda: ask("GET", "/connectors?expand=status").text, 300.0)
        drivers = javas(seen)
        assert len(drivers) >= len(SINKS)
        for name in SINKS:
            for path in ("v1/connectors/{}/doctor", "v1/connectors/{}/dead-letters", "connectors/{}/offsets"):
                heard.append((path, ask("GET", "/" + path.format(name), timeout=120.0).text))
        assert javas(seen) > drivers, "of requests as well"
    heard += [*seen, *bundle(worker), *log_and_topics(worker)]
    assert leaks(heard, canaries, session_keys(worker)) == []


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
            lambda url=one.url: plain_http.put(f"{url}/connectors/d/resume", headers=token).status_code == 202, "resume"
        )
        headers = {**token, "X-Request-Id": f"pause-{number}"}
        paused = one.wait(
            lambda url=one.url, sent=headers: (
                plain_http.put(f"{url}/connectors/d/pause", headers=sent).status_code == 202
            ),
            "pause",
        )
        assert paused
        assert plain_http.put(f"{one.url}/connectors/d/pause").status_code == 401
        assert plain_http.put(f"{one.url}/connectors/d/fence", headers=token).status_code == 400
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
        return where.startswith("environ of") and "java" not in where
    return name == "masked place" and where.startswith("answer")
