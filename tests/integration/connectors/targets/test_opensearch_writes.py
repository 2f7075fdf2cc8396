"""What the target of OpenSearch writes, and how it takes answers: a real server, without Kafka."""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cdcworker.connectors.api.record_target import RecordBatch, TargetPlace, TargetRecord, TargetUnavailable
from cdcworker.connectors.config import allowed_hosts, tls_policy
from cdcworker.connectors.config.allowed_hosts import HostPolicy
from cdcworker.connectors.targets.opensearch import identities
from cdcworker.connectors.targets.opensearch.client import SearchClient
from cdcworker.connectors.targets.opensearch.config import CONFIG_DEF
from cdcworker.connectors.targets.opensearch.target import OpenSearchTarget
from cdcworker.connectors.transforms.data import DECIMAL, ConnectSchema, Header, struct, timestamp
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.ports import HOST, free_ports

from tests.certificates import Authority
from tests.queue_servers.tls_front import TlsFront
from tests.record_sinks import wait

pytestmark = pytest.mark.opensearch
GONE = object()
INT, TEXT = ConnectSchema("int32", optional=True), ConnectSchema("string", optional=True)
ROW = struct(("id", INT), ("n", INT), ("a", TEXT))


@pytest.fixture
def name(opensearch):
    made = f"w{uuid.uuid4().hex[:8]}"
    yield made
    opensearch.drop(made, f"{made}-versions")


@pytest.fixture
def opened(name):
    made = []

    def open_target(config, class_name="opensearch", **more):
        own = {"topics": "t", "index.name.template": name, "versions.index": f"{name}-versions", **config, **more}
        made.append(OpenSearchTarget(TargetPlace(CONFIG_DEF.parse(own), class_name)))
        return made[-1]

    yield open_target
    for target in made:
        target.close()


def change(offset, value, key=1, topic="id-x", schema=None, **more):
    value = {"before": {"id": key}, "after": None, "op": "d"} if value is GONE else value
    return TargetRecord(
        f"{topic}-0-{offset}", "t", 0, offset, 1_700_000_000_000, None, {"id": key}, schema, value, **more
    )


def row(**values):
    return {"id": 1, "n": None, "a": None} | values


def refused(target, *records):
    with pytest.raises(CdcError) as error:
        target.write(RecordBatch(list(records)))
    return error.value


def test_an_older_or_repeated_write_changes_nothing(opensearch, opened, name):
    target = opened(opensearch.config())

    def written(*records):
        target.write(RecordBatch(list(records)))
        found = opensearch.ask("GET", f"/{name}/_doc/1")
        return found["_source"]["n"] if found and found["found"] else None

    assert written(change(5, row(n=5))) == 5
    assert written(change(4, row(n=4))) == 5, "an older one"
    assert written(change(3, GONE)) == 5, "an older deletion"
    assert written(change(5, row(n=9))) == 5, "the same once more"
    assert written(change(6, GONE)) is None
    assert written(change(5, row(n=5))) is None, "a late write behind the deletion"
    assert written(change(6, row(n=6)), change(7, GONE), change(8, row(n=8))) == 8
    assert written(change(9, None)) is None, "a tombstone is a deletion"
    assert written(change(0, row(n=0), topic="id-of-another")) == 0, "a topic of the same name that came later"
    assert refused(target, change(99, row(n=99))).code == "sink.target_refuses", "one of the topic before"
    assert opensearch.rows(name)["1"]["n"] == 0
    opensearch.drop(f"{name}-versions")
    error = refused(opened(opensearch.config()), change(100, row(n=1)))
    assert error.code == "sink.target_refuses"


def test_a_mapping_is_made_from_the_schema_and_gets_the_fields_of_a_later_one(opensearch, opened, name):
    target = opened(opensearch.config())
    columns = [
        ("id", INT), ("n", INT), ("a", TEXT),
        ("amount", ConnectSchema("bytes", optional=True, name=DECIMAL, parameters={"scale": "2"})),
        ("at", timestamp(optional=True)),
        ("day", ConnectSchema("int32", optional=True, name="io.debezium.time.Date")),
        ("us", ConnectSchema("int64", optional=True, name="io.debezium.time.MicroTimestamp")),
        ("zoned", ConnectSchema("string", optional=True, name="io.debezium.time.ZonedTimestamp")),
        ("data", ConnectSchema("bytes", optional=True)),
        ("more", ConnectSchema("string", optional=True, name="io.debezium.data.Json")),
        ("uid", ConnectSchema("string", optional=True, name="io.debezium.data.Uuid")),
        ("many", ConnectSchema("array", optional=True, value_schema=INT)),
        ("inner", struct(("x", INT), ("on", timestamp(optional=True)), optional=True)),
    ]  # fmt: skip
    values = {
        "amount": (12345678901234567890).to_bytes(9, "big"), "at": 1_700_000_000_123, "day": 19_000, "us": 1_700_000_000_123_456,
        "zoned": "2024-01-02T03:04:05.123456+01:00", "data": b"\0\xff", "more": '{"a": [1,\n 1.10]}', "uid": str(uuid.UUID(int=1)),
        "many": [1, 2], "inner": {"x": 3, "on": 0},
    }  # fmt: skip
    target.write(RecordBatch([change(1, row(n=1), schema=ROW)]))
    target.write(RecordBatch([change(2, row(n=1) | values, key=2, schema=struct(*columns))]))
    mapping = opensearch.ask("GET", f"/{name}/_mapping")[name]["mappings"]["properties"]
    kinds = {column: kind.get("type", "object") for column, kind in mapping.items()}
    assert kinds == {
        "id": "integer", "n": "integer", "a": "text", "amount": "double", "at": "date", "day": "date", "us": "date",
        "zoned": "date", "data": "binary", "more": "object", "uid": "keyword", "many": "integer", "inner": "object",
    }  # fmt: skip
    assert mapping["inner"]["properties"]["on"]["type"] == "date"
    found = opensearch.rows(name)["2"]
    assert (found["at"], found["day"]) == ("2023-11-14T22:13:20.123000", "2022-01-08")
    assert (found["us"], found["data"]) == ("2023-11-14T22:13:20.123456", "AP8=")
    assert (found["more"], found["inner"]["on"][:10]) == ({"a": [1, 1.1]}, "1970-01-01")
    assert "123456789012345678.90" in _raw(opensearch, name, "2")
    target.write(RecordBatch([change(3, row() | values | {"more": '{"a":1,"a":[2]}'}, key=4, schema=struct(*columns))]))
    assert opensearch.rows(name)["4"]["more"] == {"a": [2]}, "the server takes no name twice"
    # An index that is there keeps its types, and a value that does not fit is told by its field alone.
    error = refused(target, change(3, {"id": 1, "n": "secret"}, key=3))
    assert (error.code, error.kind, dict(error.where)) == ("sink.mapping_conflict", "data", {"field": "n"})
    assert "secret" not in str(error)


def _raw(server, index, id):
    import urllib.request

    with urllib.request.urlopen(f"{server.url}/{index}/_source/{id}") as answer:
        return answer.read().decode()


def test_documents_that_are_refused_do_not_keep_the_others(opensearch, opened, name):
    opened(opensearch.config()).write(RecordBatch([change(1, row(n=1), schema=ROW)]))
    poison = [change(n, {"id": n, "n": "x" if n == 5 else n}, key=n) for n in range(2, 10)]
    target = opened(opensearch.config())
    assert refused(target, *poison).code == "sink.mapping_conflict"
    assert len(opensearch.rows(name)) == 8, "the others are there already"
    for kind in ("ignore", "warn"):
        opened(opensearch.config(), **{"behavior.on.malformed.documents": kind}).write(RecordBatch(poison))
    both = [change(30, row(n=30), key=30), change(31, {"id": 30, "n": "x"}, key=30)]
    lenient = opened(opensearch.config(), **{"behavior.on.malformed.documents": "ignore"})
    assert refused(lenient, *both).code == "sink.mapping_conflict"
    for one in both:
        lenient.write(RecordBatch([one]))
    assert opensearch.rows(name)["30"]["n"] == 30, "an earlier state that fits is not dropped with a later one"
    opened(opensearch.config(), **{"drop.invalid.message": "true"}).write(RecordBatch([change(20, 7, key=20)]))
    for bad in (change(20, 7), change(21, row(), key=None), change(22, row(), key="")):
        assert refused(target, bad).code == "sink.record_refused"


def test_a_value_that_was_not_sent_stays_and_a_partial_row_is_merged(opensearch, opened, name):
    target = opened(opensearch.config())
    large = ROW.basics((*ROW.fields, *struct(("big", TEXT)).fields))
    target.write(RecordBatch([change(1, row(a='"1.10\n', big="large"), schema=large)]))
    target.write(
        RecordBatch([change(2, row(n=2, a="__debezium_unavailable_value", big=None), schema=large, unsent=("big",))])
    )
    assert opensearch.rows(name)["1"] == row(n=2, a='"1.10\n', big="large")
    target.write(
        RecordBatch([
            change(3, row(n=3, a="new", big=None), schema=large, unsent=("big",)),
            change(4, row(n=4, a="__debezium_unavailable_value", big=None), schema=large, unsent=("big",)),
        ])
    )  # fmt: skip
    assert opensearch.rows(name)["1"] == row(n=4, a="new", big="large")
    upserts = opened(opensearch.config(), **{"write.method": "upsert"})
    upserts.write(RecordBatch([change(5, {"id": 1, "n": 5})]))
    assert opensearch.rows(name)["1"] == row(n=5, a="new", big="large")
    target.write(RecordBatch([change(6, GONE), change(7, {"id": 1, "a": "__debezium_unavailable_value"})]))
    assert opensearch.rows(name)["1"] == {"id": 1}, "a row that was gone has nothing to keep"


def test_a_stored_value_that_the_server_does_not_read_is_not_dropped(opensearch, opened, name):
    """An alias of several indexes takes writes in one of them, and is not read by an id."""
    both = [f"{name}-1", f"{name}-2"]
    for index in both:
        opensearch.ask("PUT", f"/{index}", {})
    actions = [{"add": {"index": index, "alias": name, "is_write_index": index == both[0]}} for index in both]
    opensearch.ask("POST", "/_aliases", {"actions": actions})
    target = opened(opensearch.config(), **{"external.resource.usage": "ALIAS_INDEX"})
    target.write(RecordBatch([change(1, row(a="large"))]))
    error = refused(target, change(2, row(n=2), unsent=("a",)))
    assert (error.code, error.where["index"]) == ("sink.target_refuses", name)
    assert opensearch.rows(name)["1"] == row(a="large")
    opensearch.drop(*both)


def test_ids_of_keys(opensearch, opened, name):
    target = opened(opensearch.config())
    keys = ["ä/?#", "x" * 600, {"a": 1, "b": "x:y%"}, {"id": "one"}, 7]
    records = [TargetRecord(f"t-0-{n}", "t", 0, n, 1, None, key, None, {"n": n}) for n, key in enumerate(keys)]
    target.write(RecordBatch(records))
    found = {one["n"]: id for id, one in opensearch.rows(name).items()}
    assert [found[n] for n in (0, 2, 3, 4)] == ["ä/?#", "1:x%3Ay%25", "one", "7"]
    assert found[1].startswith("sha256-")
    with_topic = opened(opensearch.config(), **{"document.id.template": "${topic}-${key.id}"})
    with_topic.write(RecordBatch([change(9, {"n": 9})]))
    assert opensearch.rows(name)["t-1"] == {"n": 9}


def _look_each_time(monkeypatch):
    monkeypatch.setattr(identities, "LOOK_S", 0.0)
    monkeypatch.setattr(identities, "PAUSE_RATIO", 0)


def test_an_index_that_is_dropped_under_the_task_has_its_mapping_again(opensearch, opened, name, monkeypatch, caplog):
    _look_each_time(monkeypatch)
    words = struct(("id", INT), ("a", ConnectSchema("string", optional=True, name="io.debezium.data.Uuid")))
    tasks = [opened(opensearch.config()) for _ in range(2)]
    for number, task in enumerate(tasks):
        task.write(RecordBatch([change(number, {"id": 1, "a": "x"}, key=number, schema=words)]))
    opensearch.drop(name)
    for number, task in enumerate(tasks, 2):
        task.write(RecordBatch([change(number, {"id": 1, "a": "x"}, key=number, schema=words)]))
    assert opensearch.ask("GET", f"/{name}/_mapping")[name]["mappings"]["properties"]["a"] == {"type": "keyword"}
    assert opensearch.ask("GET", f"/{name}/_settings")[name]["settings"]["index"]["gc_deletes"] == "3600000ms"
    assert set(opensearch.rows(name)) == {"2", "3"}
    assert [one.getMessage().partition(":")[0] for one in caplog.records if name in one.getMessage()] == [
        "index is gone and is made again", "index was dropped and made again",
    ]  # fmt: skip
    opensearch.drop(name)
    opensearch.ask("PUT", f"/{name}/_doc/9", {"a": "made by the server"})
    error = refused(tasks[0], change(4, {"id": 1, "a": "x"}, schema=words))
    assert (error.code, error.where) == ("sink.target_refuses", {"index": name})
    tasks[0].write(RecordBatch([change(4, {"id": 1, "a": "x"}, key=4, schema=words)]))
    kept = opened(opensearch.config(), **{"index.create": "false"})
    kept.write(RecordBatch([change(5, {"id": 1, "a": "x"}, key=5)]))
    opensearch.drop(name)
    assert "no such index" in str(refused(kept, change(6, {"id": 1, "a": "x"})))
    assert opensearch.ask("GET", f"/{name}") is None


def test_an_alias_may_come_to_stand_for_another_index(opensearch, opened, name, monkeypatch):
    _look_each_time(monkeypatch)
    both = [f"{name}-1", f"{name}-2"]
    target = opened(opensearch.config())
    for number, index in enumerate(both):
        opensearch.ask("PUT", f"/{index}", {})
        gone = [{"remove": {"index": one, "alias": name}} for one in both[:number]]
        opensearch.ask("POST", "/_aliases", {"actions": [*gone, {"add": {"index": index, "alias": name}}]})
        target.write(RecordBatch([change(number, row(n=number), key=number, schema=ROW)]))
        assert opensearch.ask("GET", f"/{index}/_mapping")[index]["mappings"]["properties"]["n"] == {"type": "integer"}
        assert set(opensearch.rows(index)) == {str(number)}
    opensearch.drop(*both)


def test_names_of_indexes(opensearch, opened, name):
    target = opened(opensearch.config(), **{"index.name.template": f"{name}-${{value.tenant}}"})
    target.write(RecordBatch([change(1, {"tenant": "A b*"})]))
    assert opensearch.rows(f"{name}-a%2520b%252a") == {"1": {"tenant": "A b*"}}
    opensearch.drop(f"{name}-a%2520b%252a")
    target.write(RecordBatch([change(2, {"tenant": "c"})]))
    assert "one index" in str(refused(target, change(3, {"tenant": "C"})))
    assert refused(target, change(3, {"tenant": "x" * 300})).code == "sink.record_refused"
    opensearch.drop(f"{name}-c")
    closed = opened(opensearch.config(), **{"index.create": "false"})
    assert refused(closed, change(3, row())).code == "sink.target_refuses"


def test_events_and_data_streams(opensearch, opened, name):
    target = opened(opensearch.config(), **{"key.ignore": "true"})
    for _ in range(2):
        target.write(RecordBatch([change(1, row(n=1), schema=ROW), change(2, None), change(3, GONE)]))
    found = opensearch.rows(name)
    assert set(found) == {"id-x-0-1", "id-x-0-2", "id-x-0-3"}
    assert found["id-x-0-1"]["value"] == row(n=1)
    assert found["id-x-0-2"]["value"] is None
    stream = f"{name}-stream"
    config = {"data.stream.enabled": "true", "index.name.template": stream}
    logs = opened(opensearch.config(), "io.aiven.kafka.connect.opensearch.OpenSearchSinkConnector", **config)
    for _ in range(2):
        logs.write(RecordBatch([change(1, row(n=1), schema=ROW), change(2, None)]))
    assert opensearch.rows(stream) == {"id-x-0-1": row(n=1) | {"@timestamp": "2023-11-14T22:13:20.000+00:00"}}
    opensearch.ask("DELETE", f"/_data_stream/{stream}")
    opensearch.ask("DELETE", f"/_index_template/cdcworker-{stream}")


def test_a_new_backing_index_of_a_stream_has_the_fields_of_later_schemas(opensearch, opened, name):
    config = {"data.stream.enabled": "true", "event.content": "value"}
    logs = opened(opensearch.config(), **config)
    later = struct(("id", INT), ("a", ConnectSchema("string", optional=True, name="io.debezium.data.Uuid")))
    logs.write(RecordBatch([change(1, {"id": 1}, schema=struct(("id", INT)))]))
    path = f"/_index_template/cdcworker-{name}"
    template = opensearch.ask("GET", path)["index_templates"][0]["index_template"]
    template["template"]["settings"] = {"index.refresh_interval": "7s"}
    opensearch.ask("PUT", path, template)
    logs.write(RecordBatch([change(2, {"id": 1, "a": "x"}, schema=later)]))
    opensearch.ask("POST", f"/{name}/_rollover")
    logs.write(RecordBatch([change(3, {"id": 1, "a": "x"}, schema=later)]))
    found = opensearch.ask("GET", f"/{name}/_mapping")
    assert [one["mappings"]["properties"]["a"] for one in found.values()] == [{"type": "keyword"}] * 2
    settings = opensearch.ask("GET", f"/{max(found)}/_settings")[max(found)]["settings"]
    assert settings["index"]["refresh_interval"] == "7s", "what else the template has stays"
    opensearch.ask("DELETE", f"/_data_stream/{name}")
    opensearch.ask("DELETE", path)


def test_policies_of_other_sinks(opensearch, opened, name):
    confluent = opened(opensearch.config(), "io.confluent.connect.elasticsearch.ElasticsearchSinkConnector")
    confluent.write(RecordBatch([change(1, row(n=1))]))
    assert refused(confluent, change(2, None)).code == "sink.record_refused"
    aiven = opened(opensearch.config(), "io.aiven.kafka.connect.opensearch.OpenSearchSinkConnector")
    aiven.write(RecordBatch([change(2, None)]))
    assert set(opensearch.rows(name)) == {"1"}
    told = opened(opensearch.config(), **{"external.version.header": "v"})
    told.write(RecordBatch([change(0, row(n=7), headers=[Header("v", None, b"70")])]))
    told.write(RecordBatch([change(9, row(n=6), headers=[Header("v", None, b"60")])]))
    assert opensearch.rows(name)["1"]["n"] == 7
    big = [change(20 + n, row(n=n), key=2, headers=[Header("v", None, 2**n)]) for n in (50, 49, 3)]
    told.write(RecordBatch(big))
    for one in big:
        told.write(RecordBatch([one]))
    assert opensearch.rows(name)["2"]["n"] == 50, "the highest version, in whatever order they come"
    assert refused(told, change(9, row())).code == "sink.record_refused"
    assert refused(told, change(10, {"before": None, "after": None, "op": "t"})).code == "sink.record_refused"


def test_a_look_at_the_server(opensearch, opened, name):
    target = opened(opensearch.config(), topics=name, **{"index.name.template": "${topic}"})
    assert target.check() == []
    opensearch.ask("PUT", f"/{name}", {})
    (finding,) = target.check()
    assert (finding.severity, finding.key) == ("warning", "index.gc.deletes.ms")
    opensearch.drop(name)
    config = {"external.resource.usage": "INDEX", "index.name.template": "${topic}"}
    (finding,) = opened(opensearch.config(), topics=name, **config).check()
    assert (finding.severity, finding.key) == ("error", "index.create")
    (port,) = free_ports(1)
    away = opened({"connection.url": f"http://{HOST}:{port}"})
    assert [one.severity for one in away.check()] == ["warning"]
    several = opened({"connection.url": f"http://{HOST}:{port},{opensearch.url}"})
    with pytest.raises(TargetUnavailable):
        several.write(RecordBatch([change(1, row())]))
    several.write(RecordBatch([change(1, row())]))
    assert set(opensearch.rows(name)) == {"1"}


def test_closed_hosts_and_too_little_tls_are_refused_and_tls_is_verified(opensearch, opened, name, tmp_path):
    allowed_hosts.use(HostPolicy(loopback=False))
    try:
        assert refused(opened(opensearch.config()), change(1, row())).code == "config.host_not_allowed"
    finally:
        allowed_hosts.use(HostPolicy())
    tls_policy.use("encrypted")
    try:
        with pytest.raises(CdcError) as error:
            opened({"connection.url": "http://search.example:9200"})
        assert error.value.code == "config.tls_not_enough"
    finally:
        tls_policy.use("any")
    authority = Authority(tmp_path, "authority")
    with TlsFront(opensearch.port, authority.issue("server")) as front:
        config = {"connection.url": f"https://{HOST}:{front.port}"}
        assert "not trusted" in str(refused(opened(config), change(1, row())))
        trusted = {**config, "http.ssl.truststore.certificates": authority.file.read_text()}
        opened(trusted, **{"connection.compression": "true"}).write(RecordBatch([change(1, row(n=1))]))
    assert opensearch.rows(name)["1"]["n"] == 1


class Misbehaving:
    """Stands before a server, with a login, and answers as it is told: a status, with `Retry-After`, or for each item."""

    def __init__(self, login=None):
        self.login, self.said, self.requests = login, [], []
        handler = type("Handler", (_Handler,), {"front": self})
        self._server = ThreadingHTTPServer((HOST, 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://{HOST}:{self._server.server_address[1]}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        front = self.front
        front.requests.append((self.path, body))
        status, headers, said = 200, {}, {}
        if front.login and self.headers["Authorization"] != front.login:
            status, said = 401, {"error": {"type": "security_exception", "reason": "secret"}}
        elif "_bulk" in self.path:
            status, headers, said = front.said.pop(0)
        data = json.dumps(said).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *_):
        pass


@pytest.fixture
def misbehaving():
    made = []

    def front(login=None):
        made.append(Misbehaving(login))
        return made[-1]

    yield front
    for each in made:
        each.close()


def item(status, kind="", reason="secret"):
    return {"index": {"status": status, **({"error": {"type": kind, "reason": reason}} if kind else {})}}


def test_items_that_the_server_does_not_take_now_are_sent_again_alone(opened, misbehaving):
    front = misbehaving()
    target = opened({"connection.url": front.url}, **{"versions.index": ""})
    records = [change(n, {"n": n}, key=n) for n in range(4)]
    busy, full = item(429, "rejected_execution_exception"), item(403, "cluster_block_exception")
    front.said = [
        (503, {"Retry-After": "7"}, {}),
        (200, {}, {"errors": True, "items": [item(201), busy, item(400, "mapper_parsing_exception"), item(409, "version_conflict_engine_exception")]}),
        (200, {}, {"errors": True, "items": [full, item(400, "mapper_parsing_exception")]}),
        (200, {}, {"items": [item(201), item(400, "mapper_parsing_exception", "failed to parse field [n] of type [x] in 'secret'")]}),
    ]  # fmt: skip
    error = refused(target, *records)
    assert (type(error), error.retry_after_s) == (TargetUnavailable, 7.0)
    assert isinstance(refused(target, *records), TargetUnavailable)
    assert isinstance(refused(target, *records), TargetUnavailable)
    error = refused(target, *records)
    assert (error.code, dict(error.where)) == ("sink.mapping_conflict", {"field": "n"})
    assert "secret" not in str(error)
    sizes = [body.count(b"\n") // 2 for path, body in front.requests if "_bulk" in path]
    assert sizes == [4, 4, 2, 2]
    for status, code in ((302, "sink.target_refuses"), (403, "sink.target_refuses"), (413, "sink.record_refused")):
        front.said = [(status, {"Location": "http://elsewhere.example/"}, {})]
        assert refused(opened({"connection.url": front.url}, **{"versions.index": ""}), *records).code == code


def test_an_index_of_versions_that_is_there_is_not_created(opensearch, opened, name, monkeypatch):
    """A user may have no right to create one."""
    asked, ask = [], SearchClient.ask
    monkeypatch.setattr(
        SearchClient, "ask", lambda self, *given, **more: asked.append(given[:2]) or ask(self, *given, **more)
    )
    for topic in ("t", "u"):
        opened(opensearch.config()).write(RecordBatch([replace(change(1, row()), topic=topic)]))
    assert asked.count(("PUT", f"/{name}-versions")) == 1
    assert set(opensearch.rows(f"{name}-versions")) == {"t", "u"}


@pytest.mark.parametrize(
    ("config", "header"),
    [
        ({"connection.username": "u", "connection.password": "p:ä"}, "Basic dTpwOsOk"),
        ({"connection.token": "abc"}, "Bearer abc"),
        ({"connection.api.key": "abc=="}, "ApiKey abc=="),
    ],
)
def test_logins(opened, misbehaving, config, header):
    front = misbehaving(header)
    front.said = [(200, {}, {"items": [item(201)]})]
    opened({"connection.url": front.url, "versions.index": "", **config}).write(RecordBatch([change(1, {"n": 1})]))
    wrong = dict.fromkeys(config, "s3cret")
    error = refused(opened({"connection.url": front.url, "versions.index": "", **wrong}), change(1, {"n": 1}))
    assert error.code == "sink.target_refuses"
    assert "secret" not in str(error).replace("security", "")
    assert "s3cret" not in str(error)


def test_a_write_is_broken_off_from_another_thread(opensearch, opened, name):
    target = opened(opensearch.config())
    target.write(RecordBatch([change(1, row(n=1))]))
    child, errors = opensearch._running(), []
    child.freeze()
    try:
        thread = threading.Thread(target=lambda: errors.append(refused(target, change(2, row(n=2))).kind))
        thread.start()
        wait(lambda: not target.cancel() and not thread.is_alive(), "the end of the write")
    finally:
        child.thaw()
    assert errors == ["transient"]
    target.write(RecordBatch([change(2, row(n=2))]))
    assert opensearch.rows(name)["1"]["n"] == 2
