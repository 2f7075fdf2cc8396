"""The server of a REST catalog that an attacker runs, and names that lead elsewhere when Java looks them up again."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cdcworker.connectors.config import allowed_hosts as hosts
from cdcworker.connectors.sink_errors import from_lake
from cdcworker.connectors.warehouses.lake.iceberg import IcebergTables
from cdcworker.connectors.warehouses.lake.java import java_clients
from cdcworker.connectors.warehouses.lake.tables import LakeName
from cdcworker.schemas.errors import CdcError

pytestmark = [
    pytest.mark.spark,
    pytest.mark.iceberg,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
PLACE = LakeName("s", "t")
CLOSED = ("config.catalog_property", "config.host_not_allowed")
"""By its form, or by where its name leads."""


def metadata(location, **more):
    return {
        "format-version": 2, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1", "location": location, "last-sequence-number": 0,
        "last-updated-ms": 1, "last-column-id": 1, "current-schema-id": 0, "schemas": [SCHEMA], "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}], "last-partition-id": 999, "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}], "properties": {}, "snapshots": [], **more,
    }  # fmt: skip


class Server(ThreadingHTTPServer):
    """Answers as it is told, and keeps what was asked."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.port = self.server_address[1]
        self.config, self.table, self.asked = {}, {}, []
        self.location = ""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()

    def answer(self, path):
        if path.startswith("/v1/config"):
            return {"defaults": {}, "overrides": {}, **self.config}
        if path.endswith("/tables/t"):
            return {"metadata-location": f"{self.location}/m.json", "metadata": metadata(self.location), **self.table}
        if path.endswith("/tables"):
            return {"identifiers": [{"namespace": ["s"], "name": "t"}]}
        return {"namespaces": [["s"]], "namespace": ["s"], "properties": {}}


class Handler(BaseHTTPRequestHandler):
    def _do(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.command, self.path, dict(self.headers)))
        content = json.dumps(self.server.answer(self.path.partition("?")[0])).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_POST = do_HEAD = _do

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    made = Server()
    yield made
    made.close()


@pytest.fixture
def other():
    """A server that nobody may reach."""
    made = Server()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def policy():
    """What is open, and what was refused, in a process that runs one connector alone."""
    before = hosts._policy
    yield
    hosts.use(before)
    for judge, _ in java_clients._known.values():
        judge._refused.clear()


@pytest.fixture
def foreign_ports(monkeypatch):
    """The servers of a test count as those of other processes, which they would be."""
    monkeypatch.setattr(java_clients, "own_ports", set)


@pytest.fixture
def opened(spark, server, tmp_path):
    """Opens the catalog in a session of its own, whose catalogs are its own."""
    server.location = f"file://{tmp_path}/t"

    def open_(uri=None, **settings):
        uri = uri or f"http://127.0.0.1:{server.port}"
        tables = IcebergTables({"type": "rest", "uri": uri, **settings}, ("/",))
        tables.open(spark.newSession())
        return tables

    return open_


def refusal(act, *args, **more):
    with pytest.raises(Exception) as caught:
        act(*args, **more)
    found = from_lake(caught.value)
    assert found is not None, caught.value
    return found.code


def loaded(spark, name):
    """Whether a class was loaded, by what only its initialiser does."""
    return spark._jvm.java.lang.System.getProperty(name)


@pytest.mark.sampled(2, "servers")
def test_an_ordinary_server_is_used(opened, server):
    server.config = {"defaults": {"clients": "2"}, "overrides": {"prefix": "main", "x.unknown": "1"}}
    tables = opened()
    assert list(tables.places()) == [PLACE]
    assert tables.load(PLACE).empty
    assert any(path.startswith("/v1/main/namespaces/s/tables/t") for _, path, _ in server.asked), "what it sends counts"


@pytest.mark.sampled(2, "servers")
def test_a_class_that_the_server_names_is_not_loaded(opened, server):
    for where in ("defaults", "overrides"):
        server.config = {where: {"io-impl": "org.apache.iceberg.inmemory.InMemoryFileIO"}}
        assert refusal(opened) == "config.catalog_property"
        server.config = {where: {"rest.auth.type": "org.apache.iceberg.rest.auth.NoSuchManager"}}
        assert refusal(opened) == "config.catalog_property"
        names = ("metrics-reporter-impl", "rest.client.tls.configurer-impl", "s3.client-factory-impl", "client.factory")
        server.config = {where: dict.fromkeys(names, "org.apache.iceberg.NoSuchClass")}
        assert list(opened().places()) == [PLACE]
    assert not [line for line in server.asked if "metrics" in line[1]]


@pytest.mark.long
def test_a_table_does_not_name_another_client_of_files(opened, server):
    tables = opened()
    server.table = {"config": {"io-impl": "org.apache.iceberg.inmemory.InMemoryFileIO"}}
    assert refusal(tables.load, PLACE) == "config.catalog_property"
    server.table = {"storage-credentials": [{"prefix": "s3", "config": {"s3.endpoint": "http://169.254.169.254/"}}]}
    assert refusal(tables.load, PLACE) in CLOSED


@pytest.mark.long
def test_a_host_that_the_server_names_is_judged(opened, server, other, foreign_ports):
    hosts.use(hosts.HostPolicy(hosts.parse_allowed(["127.0.0.1"])))
    for name in ("uri", "s3.endpoint", "oauth2-server-uri"):
        server.config = {"overrides": {name: "http://169.254.169.254/"}}
        assert refusal(opened) in CLOSED
        server.config = {"defaults": {name: f"http://127.0.0.2:{other.port}/"}}
        if name != "uri":
            assert refusal(opened) == "config.host_not_allowed"
    server.config = {"overrides": {"uri": f"http://localhost:{other.port}/"}}
    assert list(opened().places()) == [PLACE]
    assert other.asked, "another address of an open host is taken"


@pytest.mark.long
@pytest.mark.parametrize(
    "place", ["http://169.254.169.254/x", "webhdfs://169.254.169.254/x", "hdfs://169.254.169.254/x"]
)
def test_files_of_a_table_lie_at_no_closed_place(opened, server, place):
    tables = opened()
    server.location = place
    assert refusal(tables.load, PLACE) in CLOSED


@pytest.mark.sampled(2, "servers")
def test_a_file_of_java_s_web_file_system_is_judged_when_it_is_opened(opened, spark, other, foreign_ports):
    """Places that stand in files of the table, and in no answer."""
    opened()
    hosts.use(hosts.HostPolicy((), loopback=False))
    path = spark._jvm.org.apache.hadoop.fs.Path(f"http://127.0.0.1:{other.port}/x")
    conf = spark._jsc.hadoopConfiguration()
    with pytest.raises(Exception, match=r"config\.host_not_allowed"):
        path.getFileSystem(conf).open(path).read()
    assert other.asked == []


def test_a_name_that_leads_elsewhere_when_java_looks_it_up_is_closed(opened, server, monkeypatch, foreign_ports):
    """A name server that gives the check an open address, and the client this machine's."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_a, **_k: [(2, 1, 6, "", ("192.0.2.1", 0))])
    hosts.use(hosts.HostPolicy((), loopback=False))
    hosts.judge("localhost", "warehouse.catalog.uri")
    assert refusal(opened, f"http://localhost:{server.port}") == "config.host_not_allowed"
    assert server.asked == []


@pytest.mark.long
def test_the_same_holds_for_a_nessie_catalog(spark, server, tmp_path, foreign_ports):
    hosts.use(hosts.HostPolicy((), loopback=False))
    settings = {"type": "nessie", "uri": f"http://localhost:{server.port}/api/v2", "warehouse": str(tmp_path)}
    assert refusal(IcebergTables(settings).open, spark.newSession()) == "config.host_not_allowed"
    assert server.asked == []


@pytest.mark.sampled(2, "servers")
def test_the_same_holds_for_the_sockets_of_drivers_and_of_thrift(opened, spark, server, foreign_ports):
    """What JDBC's drivers and Hive's client are made of."""
    opened()
    server.asked.clear()
    hosts.use(hosts.HostPolicy((), loopback=False))
    for make in (
        lambda: spark._jvm.java.net.Socket("localhost", server.port),
        lambda: spark._jvm.org.apache.thrift.transport.TSocket("localhost", server.port).open(),
        lambda: spark._jvm.java.net.URL(f"http://localhost:{server.port}/").openStream(),
    ):
        with pytest.raises(Exception, match=r"config\.host_not_allowed"):
            make()
    assert server.asked == []


@pytest.mark.sampled(2, "servers")
def test_spark_calls_back_where_this_machine_is_closed(opened, spark):
    """Java's call of a function of Python's is a connection to this process."""
    opened()
    hosts.use(hosts.HostPolicy((), loopback=False))
    rows = []
    stream = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
    query = (
        stream.writeStream.foreachBatch(lambda frame, _number: rows.append(frame.count())).trigger(once=True).start()
    )
    assert query.awaitTermination(60)
    assert query.exception() is None
    assert rows


@pytest.mark.sampled(2, "servers")
def test_a_table_in_an_open_folder_keeps_to_the_open_folders(spark, tmp_path):
    """Whoever writes into the folder, such as a file sink, writes the metadata of tables too."""
    root, outside = tmp_path / "open", tmp_path / "outside"
    root.mkdir()
    tables = IcebergTables({"type": "hadoop", "warehouse": str(root)}, (str(root),))
    tables.open(spark.newSession())
    tables.create(PLACE, "id bigint", None)
    assert tables.load(PLACE).empty
    metadata = sorted((root / "s" / "t" / "metadata").glob("*.json"))[-1]
    for name in ("write.data.path", "write.metadata.path"):
        text = json.loads(metadata.read_text())
        text["properties"][name] = str(outside)
        metadata.write_text(json.dumps(text))
        metadata.with_name(f".{metadata.name}.crc").unlink(missing_ok=True)
        another = tables.another()
        another.open(spark.newSession())
        with pytest.raises(CdcError) as caught:
            another.load(PLACE)
        assert caught.value.code == "file.path_not_allowed"
        text["properties"].pop(name)
        metadata.write_text(json.dumps(text))
