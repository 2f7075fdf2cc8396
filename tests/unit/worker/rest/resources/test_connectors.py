import json

import pytest
from cdcworker.connectors.api.context import CheckFinding
from cdcworker.coordinator.model import PutConnector, Reply
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.herder.herder import STOPPED
from cdcworker.worker.offsets.model import INTERRUPTED

HOSTILE = [
    "a/b",
    "a%2Fb",
    "100%",
    "back\\slash",
    "semi;colon=1",
    "q?x=1&y#z",
    "plus+plus",
    "sp ace",
    "ünï-コネクタ-🙂",
    ".",
    "..",
    "../..",
    "{connector}",
    '"quoted"',
    "a,b:c@d",
    "config",
    "status",
    "x" * 249,
]


def test_no_connectors_is_an_empty_list(client):
    answer = client.get("/connectors")
    assert (answer.status_code, answer.json()) == (200, [])
    assert answer.headers["content-type"] == "application/json"


def test_connectors_are_listed_by_name(client, cluster):
    cluster.add("b")
    cluster.add("a")
    assert client.get("/connectors").json() == ["a", "b"]
    assert client.get("/connectors/").json() == ["a", "b"]


def test_expand_gives_status_and_info(client, cluster):
    cluster.add("a")
    cluster.plan("a", "RUNNING")
    both = client.get("/connectors?expand=status&expand=info").json()
    assert set(both["a"]) == {"status", "info"}
    assert both["a"]["status"] == client.get("/connectors/a/status").json()
    assert both["a"]["info"] == client.get("/connectors/a").json()
    assert set(client.get("/connectors?expand=info").json()["a"]) == {"info"}


@pytest.mark.parametrize("value", ["nonsense", "status,info", ""])
def test_expand_with_an_unknown_value_shows_each_connector_empty(client, cluster, value):
    cluster.add("a")
    cluster.add("b")
    assert client.get(f"/connectors?expand={value}").json() == {"a": {}, "b": {}}
    assert set(client.get(f"/connectors?expand={value}&expand=info").json()["a"]) == {"info"}


def test_create_answers_201_with_its_place_and_masks_the_secret(client, herder, config, words):
    answer = client.post("/connectors", json={"name": "c", "config": config})
    assert answer.status_code == 201
    assert answer.headers["location"] == "/connectors/c"
    assert answer.headers["etag"] == '"1"'
    assert answer.json() == {
        "name": "c",
        "config": {"name": "c", **config, "password": "****"},
        "tasks": [],
        "type": "source",
    }
    assert herder.submitted == [
        PutConnector("c", {**config, "name": "c"}, kind="source", create_only=True),
    ]
    assert words.secret not in answer.text


def test_create_trims_the_name(client, config):
    assert client.post("/connectors", json={"name": " c\t", "config": config}).headers["location"] == "/connectors/c"


@pytest.mark.parametrize(("given", "stored"), [("paused", "PAUSED"), ("STOPPED", "STOPPED"), ("Running", "RUNNING")])
def test_initial_state_is_taken_in_any_case(client, cluster, config, given, stored):
    assert client.post("/connectors", json={"name": "c", "config": config, "initial_state": given}).status_code == 201
    assert cluster.state.connectors["c"].target_state == stored


def test_create_of_an_existing_name_is_409_and_does_not_ask_the_outside(client, cluster, config, checks):
    cluster.add("c")
    answer = client.post("/connectors", json={"name": "c", "config": config})
    assert (answer.status_code, answer.json()["message"]) == (409, "Connector c already exists")
    assert answer.headers["x-cdc-reason"] == "exists"
    assert answer.json()["code"] == "rest.exists"
    assert checks.asked == []


def test_create_with_another_name_in_the_config_is_refused(client, config):
    answer = client.post("/connectors", json={"name": "c", "config": {**config, "name": "d"}})
    assert answer.status_code == 400
    assert answer.json()["message"] == ("Connector name configuration (d) doesn't match connector name in the URL (c)")
    assert answer.json()["configPath"] == "/config/name"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"name": "c", "config": {}, "colour": 1}, "/colour"),
        ({"name": "c"}, "/config"),
        ({"name": "c", "config": None}, "/config"),
        ({"name": "c", "config": [1]}, "/config"),
        ({"name": "c", "config": {"a": {"b": 1}}}, "/config/a"),
        ({"name": "c", "config": {"a/b~": [1]}}, "/config/a~1b~0"),
        ({"name": ["c"], "config": {}}, "/name"),
        ({"name": "c", "config": {"host": "x"}, "initial_state": "ASLEEP"}, "/initial_state"),
        ({"name": "c", "config": {"host": "x"}, "initial_state": {}}, "/initial_state"),
        ([], ""),
        ("text", ""),
        (None, ""),
    ],
)
def test_a_wrong_shape_is_400_and_names_its_place(client, body, path):
    answer = client.post("/connectors", content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error_code"] == 400
    assert answer.json()["configPath"] == path


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_a_key_has_the_same_place_whether_its_value_or_its_form_is_wrong(client, cluster, method):
    cluster.add("c")
    for value in ({"a": 1}, "no number"):
        answer = client(method, "/connectors/c/config", json={"connector.class": "fake", "host": "h", "port": value})
        assert (answer.status_code, answer.json()["configPath"]) == (400, "/config/port")


def test_a_misspelt_key_goes_before_the_one_that_is_missing_for_it(client):
    config = {"connector.class": "fake", "hosst": "db"}
    answer = client.post("/connectors", json={"name": "c", "config": config}).json()
    assert (answer["configPath"], answer["fix"]["value"]) == ("/config/hosst", "host")
    suggestions = {item["configPath"]: item["suggestion"] for item in answer["errors"]}
    assert suggestions == {"/config/host": "Where the source is.", "/config/hosst": "Rename it to host."}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"name": }', {"line": 1, "column": 10}),
        ('{\n "a": 1,\n}', None),
        ("", {"line": 1, "column": 1}),
        ('{"a": NaN}', None),
        ('{"a": "\x01"}', None),
        ("[" * 40_000, None),
        (b'{\n"a": "\xff"}', {"line": 2, "column": 7}),
        ('{"name":"c","config":{}} x', {"line": 1, "column": 26}),
    ],
)
def test_malformed_json_is_400_with_its_place(client, text, place):
    answer = client.post("/connectors", content=text, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["code"] == "rest.bad_json"
    if place:
        assert answer.json()["where"] == place


def test_scalars_become_strings_as_they_were_written(client, cluster):
    text = '{"name":"c","config":{"connector.class":"fake","host":1.10,"port":5433,"errors.log.enable":true}}'
    answer = client.post("/connectors", content=text, headers={"content-type": "application/json"})
    assert answer.status_code == 201
    config = cluster.state.connectors["c"].config
    assert (config["host"], config["port"], config["errors.log.enable"]) == ("1.10", "5433", "true")
    assert all(type(value) is str for value in config.values())


def test_half_a_surrogate_pair_is_refused(client):
    text = '{"name":"c","config":{"host":"\\ud800"}}'
    answer = client.post("/connectors", content=text, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["configPath"]) == (400, "/config/host")


def test_an_invalid_config_lists_all_errors_as_connect_does(client, herder):
    answer = client.post("/connectors", json={"name": "c", "config": {"connector.class": "fake", "port": "x"}})
    assert answer.status_code == 400
    lines = answer.json()["message"].split("\n")
    assert lines[0] == "Connector configuration is invalid and contains the following 2 error(s):"
    assert lines[1:3] == [
        'Missing required configuration "host" which has no default value.',
        "Invalid value x for configuration port: Not a number of type INT",
    ]
    assert lines[3] == (
        "You can also find the above list of errors at the endpoint "
        "`/connector-plugins/{connectorType}/config/validate`"
    )
    assert [item["configPath"] for item in answer.json()["errors"]] == ["/config/host", "/config/port"]
    assert answer.json()["code"] == "rest.invalid_config"
    assert herder.submitted == []


def test_a_null_value_is_an_error_of_its_key(client, config):
    answer = client.post("/connectors", json={"name": "c", "config": {**config, "port": None}})
    assert answer.status_code == 400
    assert "Null value can not be supplied as the configuration value." in answer.json()["message"]


def test_a_required_key_with_null_is_told_once(client, config):
    answer = client.post("/connectors", json={"name": "c", "config": {**config, "host": None}})
    assert "the following 1 error(s)" in answer.json()["message"]


@pytest.mark.parametrize("name", ["", "   ", None, "a\x00b", "a\nb", "a\x7fb", "a\x85b", "x" * 250])
def test_a_name_that_cannot_be_is_refused(client, config, name):
    answer = client.post("/connectors", json={"name": name, "config": config})
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["configPath"] == "/config/name"


def test_a_config_without_a_class_is_refused_and_not_repeated(client, words):
    answer = client.post("/connectors", json={"name": "c", "config": {"password": words.secret}})
    assert (answer.status_code, answer.json()["message"]) == (400, "Connector config contains no connector type")
    assert words.secret not in answer.text


def test_an_unknown_class_lists_names_only(client, config):
    answer = client.post("/connectors", json={"name": "c", "config": {**config, "connector.class": "nope"}})
    assert answer.status_code == 400
    assert answer.json()["code"] == "config.unknown_connector"
    assert "fake, drain" in answer.json()["message"]


def test_a_key_without_effect_comes_back_as_a_note(client, config):
    body = {"name": "c", "config": {**config, "tasks.max.enforce": "true"}}
    answer = client.post("/connectors?details=true", json=body)
    assert answer.status_code == 201
    assert [(note["severity"], note["configPath"]) for note in answer.json()["notes"]] == [
        ("note", "/config/tasks.max.enforce")
    ]


class TestLiveChecks:
    REFUSED = CheckFinding(
        "password", "error", "postgres.auth", "the server refused the password", "Set the right one."
    )

    def test_an_error_of_the_outside_prevents_creation(self, client, checks, config, herder):
        checks.findings = [self.REFUSED]
        answer = client.post("/connectors", json={"name": "c", "config": config})
        assert answer.status_code == 400
        line = "[postgres.auth] the server refused the password (Set the right one.)"
        assert line in answer.json()["message"].split("\n")
        assert answer.json()["errors"] == [
            {
                "severity": "error",
                "code": "postgres.auth",
                "message": "the server refused the password",
                "configPath": "/config/password",
                "suggestion": "Set the right one.",
            }
        ]
        assert herder.submitted == []

    def test_they_see_the_real_secret(self, client, checks, config, words):
        client.post("/connectors", json={"name": "c", "config": config})
        assert checks.asked[0]["password"] == words.secret

    def test_they_are_skipped_on_request(self, client, checks, config):
        checks.findings = [self.REFUSED]
        assert client.post("/connectors?validate=false", json={"name": "c", "config": config}).status_code == 201
        assert checks.asked == []

    def test_the_worker_can_switch_them_off(self, connect, herder, checks, config):
        client = connect(herder, live_checks=False)
        assert client.post("/connectors", json={"name": "c", "config": config}).status_code == 201
        assert checks.asked == []

    def test_they_do_not_run_on_a_config_that_is_wrong_already(self, client, checks):
        client.post("/connectors", json={"name": "c", "config": {"connector.class": "fake"}})
        assert checks.asked == []

    def test_warnings_and_notes_are_told_and_do_no_harm(self, client, checks, config):
        checks.findings = [
            CheckFinding("host", "warning", "postgres.pooler", "a pooler answers"),
            CheckFinding("", "note", "check.incomplete", "not finished"),
        ]
        answer = client.post("/connectors?details=true", json={"name": "c", "config": config})
        assert answer.status_code == 201
        assert [(note["severity"], note["code"]) for note in answer.json()["notes"]] == [
            ("warning", "postgres.pooler"),
            ("note", "check.incomplete"),
        ]

    def test_a_secret_in_a_finding_is_cut_out(self, client, checks, config, words):
        checks.findings = [
            CheckFinding("host", "error", "postgres.odd", f"bad dsn password={words.secret}", words.secret)
        ]
        answer = client.post("/connectors", json={"name": "c", "config": config})
        assert answer.status_code == 400
        assert words.secret not in answer.text


def test_a_connector_is_read_with_its_tasks(client, cluster, words):
    cluster.add("c")
    cluster.plan("c", "RUNNING", "RUNNING")
    answer = client.get("/connectors/c")
    assert answer.json()["tasks"] == [{"connector": "c", "task": 0}, {"connector": "c", "task": 1}]
    assert answer.json()["type"] == "source"
    assert answer.json()["config"]["password"] == "****"
    assert words.secret not in answer.text


def test_a_task_set_of_an_earlier_incarnation_is_not_shown(client, cluster):
    cluster.add("c")
    cluster.plan("c", "RUNNING", incarnation="inc-0")
    assert client.get("/connectors/c").json()["tasks"] == []


@pytest.mark.parametrize("path", ["", "/config", "/tasks", "/tasks-config"])
def test_reading_an_unknown_connector_is_404(client, path):
    answer = client.get(f"/connectors/nope{path}")
    assert (answer.status_code, answer.json()["error_code"]) == (404, 404)
    assert answer.json()["message"] == "Connector nope not found"


def test_the_config_has_its_name_its_mask_and_its_version(client, cluster):
    cluster.add("c", version=7)
    answer = client.get("/connectors/c/config")
    assert answer.json()["name"] == "c"
    assert answer.json()["password"] == "****"
    assert answer.headers["etag"] == '"7"'


def test_a_reference_in_a_secret_key_is_shown_raw(client, cluster):
    cluster.add("c", {"password": "${env:DB_PASSWORD}"})
    assert client.get("/connectors/c/config").json()["password"] == "${env:DB_PASSWORD}"


def test_a_config_of_a_class_this_worker_lacks_is_masked_by_its_names(client, cluster, words):
    cluster.add("c", {"connector.class": "gone", "api.token": words.secret})
    for path in ("/connectors/c", "/connectors/c/config", "/connectors?expand=info"):
        assert words.secret not in client.get(path).text


class TestPut:
    def test_of_a_new_name_creates(self, client, config):
        answer = client.put("/connectors/c/config", json=config)
        assert (answer.status_code, answer.headers["location"]) == (201, "/connectors/c")

    def test_of_a_known_name_updates(self, client, cluster, config):
        cluster.add("c")
        answer = client.put("/connectors/c/config", json={**config, "host": "other"})
        assert answer.status_code == 200
        assert "location" not in answer.headers
        assert answer.headers["etag"] == '"2"'
        assert answer.json()["config"]["host"] == "other"
        assert cluster.state.connectors["c"].config["host"] == "other"

    def test_of_the_same_config_changes_nothing(self, client, cluster):
        cluster.add("c")
        masked = client.get("/connectors/c/config").json()
        assert client.put("/connectors/c/config", json=masked).headers["etag"] == '"1"'

    def test_keeps_the_secret_behind_a_mask(self, client, cluster, checks, words):
        cluster.add("c")
        masked = client.get("/connectors/c/config").json()
        answer = client.put("/connectors/c/config", json={**masked, "host": "other"})
        assert answer.status_code == 200
        assert cluster.state.connectors["c"].config["password"] == words.secret
        assert checks.asked[0]["password"] == words.secret
        assert words.secret not in answer.text

    def test_replaces_the_secret_by_a_new_one(self, client, cluster, config):
        cluster.add("c")
        client.put("/connectors/c/config", json={**config, "password": "new"})
        assert cluster.state.connectors["c"].config["password"] == "new"

    def test_refuses_a_mask_that_hides_nothing(self, client, config):
        answer = client.put("/connectors/c/config", json={**config, "password": "****"})
        assert (answer.status_code, answer.json()["code"]) == (400, "config.masked_value")
        assert answer.json()["configPath"] == "/config/password"

    def test_takes_stars_in_an_ordinary_key_as_they_are(self, client, cluster, config):
        client.put("/connectors/c/config", json={**config, "host": "****"})
        assert cluster.state.connectors["c"].config["host"] == "****"

    def test_with_another_name_is_refused(self, client, config):
        assert client.put("/connectors/c/config", json={**config, "name": "d"}).status_code == 400

    def test_of_an_invalid_config_is_refused(self, client):
        assert client.put("/connectors/c/config", json={"connector.class": "fake"}).status_code == 400

    @pytest.mark.parametrize("body", ["[]", '"x"', "3", '{"a":{}}', "{"])
    def test_of_something_else_is_refused(self, client, body):
        answer = client.put("/connectors/c/config", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400


class TestPatch:
    def test_changes_removes_and_keeps(self, client, cluster, words):
        cluster.add("c", {"port": "1", "tasks.max": "2"})
        answer = client.patch("/connectors/c/config", json={"port": "2", "tasks.max": None, "password": "****"})
        assert answer.status_code == 200
        config = cluster.state.connectors["c"].config
        assert (config["port"], config["password"], config["host"]) == ("2", words.secret, "db")
        assert "tasks.max" not in config
        assert words.secret not in answer.text

    @pytest.mark.parametrize("name", ["zzz", None])
    def test_of_the_name_is_refused(self, client, cluster, name):
        cluster.add("c")
        assert client.patch("/connectors/c/config", json={"name": name}).status_code == 400

    def test_of_an_unknown_connector_is_404(self, client):
        answer = client.patch("/connectors/c/config", json={"port": "1"})
        assert (answer.status_code, answer.json()["message"]) == (404, "Connector c not found")

    def test_to_an_invalid_config_is_refused(self, client, cluster):
        cluster.add("c")
        assert client.patch("/connectors/c/config", json={"host": None}).status_code == 400

    def test_is_computed_again_when_the_connector_changed_meanwhile(self, client, cluster, herder):
        cluster.add("c")
        herder.script = [Reply("version_mismatch", version=2)]
        assert client.patch("/connectors/c/config", json={"port": "1"}).status_code == 200
        assert [request.if_version for request in herder.submitted] == [1, 1]

    def test_asks_the_outside_once_however_often_it_is_computed(self, client, cluster, herder, checks):
        cluster.add("c")
        herder.script = [Reply("version_mismatch", version=2)] * 3
        assert client.patch("/connectors/c/config", json={"port": "1"}).status_code == 200
        assert len(checks.asked) == 1

    def test_gives_up_after_its_time(self, connect, cluster, herder):
        cluster.add("c")
        herder.script = [Reply("version_mismatch")] * 10
        answer = connect(herder, patch_s=0.0).patch("/connectors/c/config", json={"port": "1"})
        assert (answer.status_code, answer.headers["retry-after"]) == (409, "1")


class TestDelete:
    def test_answers_204_and_then_404(self, client, cluster):
        cluster.add("c")
        cluster.plan("c", "RUNNING")
        answer = client.delete("/connectors/c")
        assert (answer.status_code, answer.content) == (204, b"")
        for path in ("", "/status", "/config", "/tasks", "/tasks/0/status"):
            assert client.get(f"/connectors/c{path}").status_code == 404
        assert client.delete("/connectors/c").status_code == 404

    def test_of_an_unknown_connector_is_404(self, client):
        assert client.delete("/connectors/c").json()["message"] == "Connector c not found"


class TestIfMatch:
    @pytest.mark.parametrize("tag", ['"4"', "4", 'W/"4"', '"1", "4"', "*"])
    def test_of_the_present_version_passes(self, client, cluster, config, tag):
        cluster.add("c", version=4)
        headers = {"if-match": tag}
        assert client.put("/connectors/c/config", json={**config, "port": "1"}, headers=headers).status_code == 200

    @pytest.mark.parametrize("tag", ['"3"', '"abc"', '"1", "2"', "", '"-1"'])
    def test_of_another_version_is_412(self, client, cluster, config, tag):
        cluster.add("c", version=4)
        headers = {"if-match": tag}
        answers = [
            client.put("/connectors/c/config", json={**config, "port": "1"}, headers=headers),
            client.patch("/connectors/c/config", json={"port": "1"}, headers=headers),
            client.delete("/connectors/c", headers=headers),
        ]
        assert [answer.status_code for answer in answers] == [412, 412, 412]
        assert answers[0].json()["code"] == "rest.version_mismatch"
        assert cluster.state.connectors["c"].version == 4

    def test_on_a_connector_that_is_not_there_is_412(self, client, config):
        assert client.put("/connectors/c/config", json=config, headers={"if-match": '"1"'}).status_code == 412


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_works_everywhere(client, config, name):
    created = client.post("/connectors", json={"name": name, "config": config})
    assert created.status_code == 201, created.text
    place = created.headers["location"]
    assert client.get(place).json()["name"] == name
    assert client.get(place + "/").status_code == 200
    for path in ("/config", "/status", "/tasks", "/topics"):
        assert client.get(place + path).status_code == 200, path
    assert client.put(place + "/config", json={**config, "port": "1"}).status_code == 200
    assert client.patch(place + "/config", json={"port": "2"}).status_code == 200
    assert client.put(place + "/pause").status_code == 202
    assert client.put(place + "/resume/").status_code == 202
    assert client.post(place + "/restart?includeTasks=true").json()["name"] == name
    assert client.put(place + "/stop").status_code == 204
    assert client.get("/connectors").json() == [name]
    assert client.delete(place).status_code == 204
    assert client.get("/connectors").json() == []


def test_a_name_that_is_not_utf8_is_404(client):
    assert client.get("/connectors/%ff").status_code == 404


class TestHerd:
    """What becomes of the herder's replies."""

    def test_no_leader_is_409_with_a_reason(self, client, herder, config):
        herder.script = [Reply("no_leader")]
        answer = client.post("/connectors", json={"name": "c", "config": config})
        assert answer.status_code == 409
        assert answer.json()["message"] == (
            "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway."
        )
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["x-cdc-reason"] == "rebalance"

    def test_a_leader_that_comes_soon_is_waited_for(self, connect, herder, config):
        client = connect(herder, leader_wait_s=30.0)
        herder.script = [Reply("no_leader"), Reply("no_leader")]
        assert client.post("/connectors", json={"name": "c", "config": config}).status_code == 201

    def test_a_conflict_is_409(self, client, herder, cluster):
        cluster.add("c")
        herder.script = [Reply("conflict")]
        answer = client.put("/connectors/c/pause")
        assert answer.status_code == 409
        assert answer.json()["message"] == (
            "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
        )

    @pytest.mark.parametrize("age", [0.5, 30.0])
    def test_silence_is_connects_timeout(self, connect, herder, cluster, age):
        cluster.add("c")
        client = connect(herder, reply_timeout_s=0.01)
        herder.changes = {"last_tick_age_s": age}
        herder.script = [None]
        answer = client.put("/connectors/c/pause")
        assert answer.status_code == 500
        expected = "The worker is currently " if age > 10 else "The last operation the worker completed was "
        assert answer.json()["message"].startswith("Request timed out. " + expected)

    def test_a_timeout_reply_is_connects_timeout(self, client, herder, cluster):
        cluster.add("c")
        herder.script = [Reply("timeout")]
        answer = client.delete("/connectors/c")
        assert (answer.status_code, answer.json()["code"]) == (500, "rest.timeout")

    def test_an_unforeseen_error_tells_nothing(self, client, herder, cluster, words, caplog):
        cluster.add("c")
        herder.script = [RuntimeError(words.secret)]
        answer = client.delete("/connectors/c")
        assert (answer.status_code, answer.json()["error_code"]) == (500, 500)
        assert words.secret not in answer.text


def test_a_worker_that_ends_without_an_answer_says_that_it_does_not_know(connect, make_herder, cluster):
    cluster.add("c")
    herder = make_herder(script=[CdcError(STOPPED, "the worker stopped before it could answer")])
    answer = connect(herder).put("/connectors/c/pause")
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "worker.stopped", "1")


def test_a_fenced_error_is_a_conflict_that_says_when_to_come_back(connect, make_herder, cluster):
    cluster.add("c")
    herder = make_herder(script=[CdcError(INTERRUPTED, "the connector does not stand still")])
    answer = connect(herder).put("/connectors/c/pause")
    assert (answer.status_code, answer.headers["x-cdc-reason"], answer.headers["retry-after"]) == (409, "epoch", "1")


def test_the_refusal_of_an_unknown_key_names_the_property_that_takes_it(client, config):
    answer = client.post("/connectors", json={"name": "c", "config": {**config, "my.own.remark": "x"}})
    assert answer.status_code == 400
    assert answer.json()["message"].splitlines()[:3] == [
        "Connector configuration is invalid and contains the following 1 error(s):",
        "my.own.remark is not a known key",
        "Workers with config.unknown.keys=warn take keys that they do not know.",
    ]
    other = client.post("/connectors", json={"name": "c", "config": {**config, "port": "x"}})
    assert "config.unknown.keys" not in other.json()["message"]


def test_a_worker_with_warn_takes_and_keeps_an_unknown_key(connect, config, herder):
    client = connect(herder, takes_unknown_keys=True)
    answer = client.post("/connectors", json={"name": "c", "config": {**config, "my.own.remark": "x"}})
    assert answer.status_code == 201
    assert answer.json()["config"]["my.own.remark"] == "x"
    assert herder.submitted[0].config["my.own.remark"] == "x"
    validate = "/connector-plugins/fake/config/validate?details=true"
    checked = client.put(validate, json={**config, "name": "c", "my.own.remark": "x"})
    assert checked.json()["error_count"] == 0
    assert [item["severity"] for item in checked.json()["findings"]] == ["warning"]
