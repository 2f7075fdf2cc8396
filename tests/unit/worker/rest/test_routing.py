import asyncio
import logging

import pytest
from cdcworker.schemas.threads import ThreadDeaths
from cdcworker.worker.http.paths import encode_segment
from cdcworker.worker.rest.resources import loggers
from cdcworker.worker.rest.routing import accepts, is_json
from cdcworker.worker.server.application import ENDPOINTS, create_app
from starlette.responses import JSONResponse
from starlette.routing import Route

MISSING = 'Missing required configuration "{}" which has no default value.'
NOT_FOUND = {"error_code": 404, "message": "HTTP 404 Not Found"}


@pytest.mark.parametrize(
    "path",
    ["/nope", "/connectors/a/b", "/connectors/a/status/x", "/connectors//", "/connectors//config"],
)
def test_an_unknown_path_is_connects_404(client, path):
    answer = client.get(path)
    assert (answer.status_code, answer.json()) == (404, NOT_FOUND)


@pytest.mark.parametrize(
    ("method", "path"),
    [("DELETE", "/connectors"), ("POST", "/connectors/c"), ("GET", "/connectors/c/pause"), ("PUT", "/"), ("BREW", "/")],
)
def test_a_wrong_method_is_connects_405(client, method, path):
    answer = client(method, path)
    assert (answer.status_code, answer.json()) == (405, {"error_code": 405, "message": "HTTP 405 Method Not Allowed"})
    assert "OPTIONS" in answer.headers["allow"]


def test_options_is_200(client):
    answer = client("OPTIONS", "/connectors")
    assert (answer.status_code, answer.headers["allow"]) == (200, "GET, HEAD, OPTIONS, POST")


def test_head_is_get_without_a_body_of_its_own(client):
    assert client("HEAD", "/connectors").status_code == 200


def test_an_accept_that_excludes_json_is_406(client):
    answer = client.get("/connectors", headers={"accept": "text/html"})
    assert (answer.status_code, answer.json()) == (406, {"error_code": 406, "message": "HTTP 406 Not Acceptable"})


@pytest.mark.parametrize(
    ("header", "fits"),
    [
        (None, True),
        ("", True),
        ("*/*", True),
        ("application/*", True),
        ("Application/JSON; charset=utf-8", True),
        ("text/html, application/xhtml+xml, */*;q=0.8", True),
        ("application/json;q=0, */*", False),
        ("application/json;q=x", False),
        ("text/*", False),
        ("application/vnd.api+json", False),
    ],
)
def test_accept_is_read_by_its_most_specific_range(header, fits):
    assert accepts(header, "application/json") is fits


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/jsonx", 415),
        ("application/json; charset=utf-8", 201),
        ("APPLICATION/JSON", 201),
        (None, 201),
    ],
)
def test_a_body_must_be_json(client, config, content_type, status):
    import json

    headers = {"content-type": content_type} if content_type else {}
    body = json.dumps({"name": "c", "config": config}).encode()
    assert client.post("/connectors", content=body, headers=headers).status_code == status


def test_an_empty_form_is_no_body(client, cluster):
    cluster.add("c")
    headers = {"content-type": "application/x-www-form-urlencoded", "content-length": "0"}
    assert client.put("/connectors/c/pause", headers=headers).status_code == 202
    assert is_json(None)


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_large_is_413(client, declared):
    async def chunks():
        for _ in range(40):
            yield b" " * 32_768

    body = b" " * (40 * 32_768) if declared else chunks()
    answer = client.post("/connectors", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error_code"]) == (413, 413)
    assert answer.json()["code"] == "rest.body_too_large"


def test_a_body_up_to_the_limit_is_read(client):
    answer = client.post("/connectors", content=b" " * (1 << 20), headers={"content-type": "application/json"})
    assert answer.status_code == 400


def test_dots_survive_in_names():
    assert [encode_segment(name) for name in (".", "..", "a.b", "a/b;")] == ["%2E", "%2E%2E", "a.b", "a%2Fb%3B"]


def test_further_routes_are_served(runner, herder):
    import httpx

    app = create_app(herder, registry_routes=[Route("/subjects", lambda request: JSONResponse(["s"]))])

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://w") as http:
            return await http.get("/subjects")

    assert runner.run(ask()).json() == ["s"]


def test_every_operation_is_declared_once_and_described():
    keys = [(endpoint.method, endpoint.path) for endpoint in ENDPOINTS]
    assert len(keys) == len(set(keys))
    assert all(endpoint.summary and endpoint.statuses and endpoint.tag for endpoint in ENDPOINTS)
    assert all(endpoint.body for endpoint in ENDPOINTS if endpoint.method == "POST" and endpoint.path == "/connectors")


def test_the_root_tells_an_api_version_that_clients_understand(client):
    body = client.get("/").json()
    major, minor = (int(part) for part in body["version"].split(".")[:2])
    assert (major, minor) >= (3, 6)
    assert body["kafka_cluster_id"] == "kafka-1"
    assert set(body) == {"version", "commit", "kafka_cluster_id"}


class TestHealth:
    def test_of_a_ready_worker(self, client):
        answer = client.get("/health")
        assert answer.status_code == 200
        assert answer.json() == {
            "status": "healthy",
            "message": "Worker has completed startup and is ready to handle requests.",
        }
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 200

    def test_while_starting(self, client, herder):
        herder.changes = {"ready": False}
        assert [client.get(path).status_code for path in ("/health", "/healthz", "/readyz")] == [503, 200, 503]
        assert client.get("/health").json()["status"] == "starting"

    def test_while_draining(self, client, herder):
        herder.changes = {"draining": True}
        assert [client.get(path).status_code for path in ("/health", "/healthz", "/readyz")] == [200, 200, 503]

    def test_with_a_silent_herder(self, client, herder):
        herder.changes = {"last_tick_age_s": 11.0}
        assert [client.get(path).status_code for path in ("/health", "/healthz", "/readyz")] == [500, 200, 503]
        herder.changes = {"last_tick_age_s": 61.0}
        assert client.get("/healthz").status_code == 503

    def test_with_a_dead_thread_until_it_works_again(self, connect, herder):
        deaths = ThreadDeaths()
        client = connect(herder, threads=deaths)
        deaths.died("schema-tail")
        assert [client.get(path).status_code for path in ("/health", "/healthz", "/readyz")] == [500, 200, 503]
        assert "schema-tail" in client.get("/health").json()["message"]
        assert 'cdc_worker_threads_dead{thread="schema-tail"} 1.0' in client.get("/metrics").text
        deaths.healed("schema-tail")
        assert [client.get(path).status_code for path in ("/health", "/readyz")] == [200, 200]


class TestPlugins:
    def test_are_listed_under_the_names_that_tools_look_for(self, client):
        body = client.get("/connector-plugins").json()
        assert [(item["class"], item["type"]) for item in body] == [
            ("fake", "source"),
            ("com.example.FakeConnector", "source"),
            ("drain", "sink"),
        ]
        everything = client.get("/connector-plugins?connectorsOnly=false").json()
        assert everything[: len(body)] == body
        kinds = {item["class"]: item["type"] for item in everything[len(body) :]}
        assert kinds["org.apache.kafka.connect.json.JsonConverter"] == "converter"
        assert kinds["io.debezium.transforms.ExtractNewRecordState"] == "transformation"
        assert kinds["org.apache.kafka.connect.transforms.Cast$Key"] == "transformation"
        assert kinds["org.apache.kafka.connect.transforms.predicates.HasHeaderKey"] == "predicate"
        assert set(kinds.values()) == {"converter", "header_converter", "transformation", "predicate"}

    @pytest.mark.parametrize(
        ("name", "key"),
        [
            ("org.apache.kafka.connect.json.JsonConverter", "schemas.enable"),
            ("JsonConverter", "decimal.format"),
            ("io.debezium.transforms.ExtractNewRecordState", "delete.tombstone.handling.mode"),
            ("RegexRouter", "replacement"),
            ("org.apache.kafka.connect.transforms.Cast$Value", "spec"),
            ("TopicNameMatches", "pattern"),
        ],
    )
    def test_of_converters_and_transforms_have_their_keys_too(self, client, name, key):
        found = {item["name"]: item for item in client.get(f"/connector-plugins/{name}/config").json()}
        assert found[key]["documentation"]
        assert not [item for item in found if item.startswith(("transforms.", "value."))]
        assert client.get(f"/connector-plugins/{name}/config?version=9").status_code == 400

    def test_show_their_keys(self, client):
        keys = {item["name"]: item for item in client.get("/connector-plugins/fake/config").json()}
        assert keys["host"] == {
            "name": "host",
            "type": "STRING",
            "required": True,
            "default_value": None,
            "importance": "HIGH",
            "documentation": "Where the source is.",
            "group": "Source",
            "width": "MEDIUM",
            "display_name": "host",
            "dependents": [],
            "order_in_group": 1,
        }
        assert keys["password"]["type"] == "PASSWORD"
        more = client.get("/connector-plugins/fake/config?details=true").json()
        assert all(item["order"] == item["order_in_group"] for item in more)

    def test_that_are_unknown_are_404(self, client):
        answer = client.get("/connector-plugins/nope/config")
        assert (answer.status_code, answer.json()["message"]) == (404, "Unknown plugin nope.")


class TestValidate:
    PATH = "/connector-plugins/fake/config/validate"

    def value(self, answer, name):
        return next(item["value"] for item in answer.json()["configs"] if item["value"]["name"] == name)

    def test_of_a_good_config(self, client, config, words):
        answer = client.put(self.PATH, json={**config, "name": "c"})
        assert answer.status_code == 200
        body = answer.json()
        assert (body["name"], body["error_count"]) == ("fake", 0)
        assert body["groups"] == ["Common", "Error handling", "Source"]
        assert self.value(answer, "host") == {
            "name": "host",
            "value": "db",
            "recommended_values": [],
            "errors": [],
            "visible": True,
        }
        assert self.value(answer, "password")["value"] == "****"
        assert self.value(answer, "port")["value"] == "5432"
        assert words.secret not in answer.text

    def test_of_a_bad_config_is_200_with_errors(self, client):
        answer = client.put(self.PATH, json={"connector.class": "fake", "hots": "x", "port": None})
        assert answer.status_code == 200
        assert self.value(answer, "host")["errors"] == [MISSING.format("host")]
        assert self.value(answer, "name")["errors"] == [MISSING.format("name")]
        assert self.value(answer, "port")["errors"] == ["Null value can not be supplied as the configuration value."]
        unknown = next(item for item in answer.json()["configs"] if item["value"]["name"] == "hots")
        assert unknown["definition"] is None
        assert unknown["value"]["errors"] == ["hots is not a known key; did you mean host?"]
        assert answer.json()["error_count"] == 4

    def test_a_null_of_an_unknown_key_is_told(self, client, config):
        answer = client.put(self.PATH, json={**config, "name": "c", "hots": None})
        told = [error for item in answer.json()["configs"] for error in item["value"]["errors"]]
        assert len(told) == answer.json()["error_count"] == 1

    def test_shows_live_findings_at_their_keys(self, client, config, checks):
        from cdcworker.connectors.api.context import CheckFinding

        checks.findings = [
            CheckFinding("host", "error", "postgres.unreachable", "nobody listens", "Start it."),
            CheckFinding("elsewhere", "error", "postgres.odd", "odd"),
            CheckFinding("", "note", "check.incomplete", "not finished"),
        ]
        answer = client.put(f"{self.PATH}?details=true", json={**config, "name": "c"})
        assert self.value(answer, "host")["errors"] == ["[postgres.unreachable] nobody listens (Start it.)"]
        assert self.value(answer, "connector.class")["errors"] == ["[postgres.odd] odd"]
        assert answer.json()["error_count"] == 2
        assert len(answer.json()["findings"]) == 3

    def test_uses_the_stored_secret_behind_a_mask(self, client, cluster, config, checks, words):
        cluster.add("c")
        answer = client.put(self.PATH, json={**config, "name": "c", "password": "****"})
        assert answer.json()["error_count"] == 0
        assert checks.asked[0]["password"] == words.secret
        assert words.secret not in answer.text

    @pytest.mark.parametrize("path", ["fake", "FakeConnector", "com.example.FakeConnector"])
    def test_takes_any_name_of_the_class(self, client, config, path):
        body = {**config, "name": "c", "connector.class": "com.example.FakeConnector"}
        answer = client.put(f"/connector-plugins/{path}/config/validate", json=body)
        assert (answer.status_code, answer.json()["name"]) == (200, "com.example.FakeConnector")

    def test_of_another_class_than_the_path_is_400(self, client, config):
        answer = client.put("/connector-plugins/drain/config/validate", json=config)
        assert answer.status_code == 400
        assert answer.json()["message"] == "Included connector type fake does not match request type drain"

    def test_without_a_class_is_400(self, client):
        assert client.put(self.PATH, json={"host": "x"}).status_code == 400

    def test_of_an_unknown_class_is_400(self, client):
        answer = client.put("/connector-plugins/nope/config/validate", json={"connector.class": "nope"})
        assert (answer.status_code, answer.json()["code"]) == (400, "config.unknown_connector")


class TestLoggers:
    @pytest.fixture(autouse=True)
    def _levels(self):
        names = ["cdcworker.testing", "cdcworker.testing.below", "cdcworker.testingbeside"]
        for name in names:
            logging.getLogger(name)
        logging.getLogger("cdcworker.testing.below").setLevel(logging.ERROR)
        before = logging.root.level
        yield
        for name in names:
            logging.getLogger(name).setLevel(logging.NOTSET)
        logging.root.setLevel(before)

    def test_with_a_level_of_their_own_are_listed(self, client):
        body = client.get("/admin/loggers").json()
        assert body["root"]["level"] in ("WARN", "INFO", "DEBUG", "ERROR")
        assert body["cdcworker.testing.below"]["level"] == "ERROR"
        assert "cdcworker.testing" not in body

    def test_show_the_level_that_holds(self, client):
        below = client.get("/admin/loggers/cdcworker.testing.below").json()
        assert below["level"] == "ERROR"
        assert (
            client.get("/admin/loggers/cdcworker.testing").json()["level"]
            == client.get("/admin/loggers/root").json()["level"]
        )

    def test_that_are_unknown_are_404(self, client):
        answer = client.get("/admin/loggers/no.such")
        assert (answer.status_code, answer.json()["message"]) == (404, "Logger no.such not found.")

    @pytest.mark.parametrize("query", ["", "?scope=worker", "?scope=odd"])
    def test_are_set_with_those_below(self, client, query):
        answer = client.put(f"/admin/loggers/cdcworker.testing{query}", json={"level": "debug"})
        assert (answer.status_code, answer.json()) == (200, ["cdcworker.testing", "cdcworker.testing.below"])
        assert logging.getLogger("cdcworker.testing.below").level == logging.DEBUG
        assert logging.getLogger("cdcworker.testingbeside").level == logging.NOTSET
        assert client.get("/admin/loggers/cdcworker.testing").json()["last_modified"] > 0

    def test_that_have_the_level_are_not_among_those_that_change(self, client):
        first = client.put("/admin/loggers/cdcworker.testing", json={"level": "debug"})
        modified = client.get("/admin/loggers/cdcworker.testing").json()["last_modified"]
        again = client.put("/admin/loggers/cdcworker.testing", json={"level": "debug"})
        assert (first.json(), again.status_code, again.json()) == (
            ["cdcworker.testing", "cdcworker.testing.below"],
            200,
            [],
        )
        assert client.get("/admin/loggers/cdcworker.testing").json()["last_modified"] == modified
        logging.getLogger("cdcworker.testing.below").setLevel(logging.ERROR)
        some = client.put("/admin/loggers/cdcworker.testing", json={"level": "debug"})
        assert some.json() == ["cdcworker.testing.below"]

    def test_need_a_level(self, client):
        answer = client.put("/admin/loggers/cdcworker.testing", json={})
        assert answer.status_code == 400
        assert answer.json()["message"] == "Desired 'level' parameter was not specified in request."

    def test_refuse_an_unknown_level(self, client):
        answer = client.put("/admin/loggers/cdcworker.testing", json={"level": "LOUD"})
        assert (answer.status_code, answer.json()["message"]) == (404, "invalid log level 'LOUD'.")
        assert answer.json()["suggestion"] == "The levels are TRACE, DEBUG, INFO, WARN, ERROR, FATAL, OFF."

    @pytest.mark.parametrize("scope", ["cluster", "CLUSTER"])
    def test_of_the_whole_cluster_are_a_record_that_the_leader_writes(self, pair, cluster, scope):
        answer = pair.follower.put(f"/admin/loggers/cdcworker.testing?scope={scope}", json={"level": "warn"})
        assert (answer.status_code, answer.content) == (204, b"")
        record = cluster.state.settings["logger/cdcworker.testing"]
        assert record["level"] == "WARN"
        assert [len(herder.submitted) for herder in (pair.following, pair.leading)] == [1, 1]

    def test_of_the_cluster_are_followed_from_when_the_worker_is_there(self):
        follower, logger = loggers.LogLevelFollower(), logging.getLogger("cdcworker.testing.below")
        logger.setLevel(logging.INFO)
        follower.apply_changes({"logger/cdcworker.testing": {"level": "DEBUG", "ts": 1}, "session-key": {}})
        assert logger.level == logging.INFO
        follower.apply_changes({"logger/cdcworker.testing": {"level": "ERROR", "ts": 2}, "session-key": {}})
        assert logger.level == logging.ERROR
        logger.setLevel(logging.INFO)
        follower.apply_changes({"logger/cdcworker.testing": {"level": "ERROR", "ts": 2}, "logger/x": {"level": "LOUD"}})
        assert logger.level == logging.INFO


def test_the_clusters_picture(client, cluster):
    cluster.add("c")
    cluster.plan("c", "RUNNING", None)
    cluster.report("c", 0, "RUNNING", metrics={"records": 5})
    cluster.workers["lost:8083"] = cluster.workers["follower:8083"]
    body = client.get("/v1/cluster").json()
    assert body["leader"] == {"id": "leader:8083", "url": "http://leader:8083", "epoch": 3}
    assert body["version"] == 10
    follower = next(worker for worker in body["workers"] if worker["id"] == "follower:8083")
    assert follower == {
        "id": "follower:8083",
        "url": "http://follower:8083",
        "alive": True,
        "draining": False,
        "returns": False,
        "capacity": 1,
        "protocol": 5,
        "version": "0.1.0",
        "tasks": 2,
    }
    assert body["tasks"][0] == {
        "connector": "c",
        "task": 0,
        "state": "RUNNING",
        "worker": "follower:8083",
        "epoch": 100,
        "metrics": {"records": 5},
        "error": None,
        "retrying": None,
        "held_tables": 0,
        "waits_s": None,
    }
    assert body["tasks"][1]["state"] == "UNASSIGNED"


def test_the_clusters_picture_says_what_the_worker_has_warned_of(connect, herder):
    assert connect(herder).get("/v1/cluster").json()["warnings"] == []
    told = ("inter.worker.secret.file is not set: whoever can read the config topic can pass for a worker",)
    assert connect(herder, warnings=told).get("/v1/cluster").json()["warnings"] == list(told)


def test_a_lost_worker_with_tasks_stays_in_the_picture(client, cluster):
    cluster.add("c")
    cluster.plan("c", "RUNNING")
    del cluster.workers["follower:8083"]
    workers = {worker["id"]: worker for worker in client.get("/v1/cluster").json()["workers"]}
    assert (workers["follower:8083"]["alive"], workers["follower:8083"]["tasks"]) == (False, 1)


def test_the_loop_is_not_held_by_slow_checks(connect, herder, config, checks, runner):
    """While one request checks the outside, others are answered."""
    import threading

    release = threading.Event()
    client = connect(herder)
    client.app.state.api.checks = lambda config, timeout_s: release.wait(30) and []

    async def both():
        slow = asyncio.ensure_future(client._http.post("/connectors", json={"name": "c", "config": config}))
        quick = await client._http.get("/connectors")
        assert not slow.done()
        release.set()
        return quick, await slow

    quick, slow = runner.run(both())
    assert (quick.status_code, slow.status_code) == (200, 201)


def test_only_so_many_check_at_once_and_the_rest_is_told(connect, herder, config, runner):
    """Who finds no free checker within the time limit is not refused."""
    import threading

    release, running = threading.Event(), []

    def check(config, timeout_s):
        running.append(config["name"])
        release.wait(30)
        return []

    client = connect(herder, checks_max=1, check_timeout_s=0.05)
    client.app.state.api.checks = check

    path = "/connectors?details=true"

    async def both():
        posts = [client._http.post(path, json={"name": name, "config": config}) for name in ("a", "b")]
        first, second = (asyncio.ensure_future(post) for post in posts)
        unlucky = await second
        release.set()
        return await first, unlucky

    first, second = runner.run(both())
    assert (first.status_code, second.status_code) == (201, 201)
    assert running == ["a"]
    assert [note["code"] for note in second.json()["notes"]] == ["check.incomplete"]
