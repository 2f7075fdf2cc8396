"""The support bundle: what is in it, what is named as missing, and that no planted value is."""

from __future__ import annotations

import json
import logging
import stat
import tarfile

import httpx
import pytest
from cdcworker.worker.cli.commands.support import LEFT_OUT, support_bundle, without_rows
from cdcworker.worker.diagnostics import support
from cdcworker.worker.logs import redaction
from cdcworker.worker.logs import setup as logs
from cdcworker.worker.offsets.model import ConnectorOffset
from click.testing import CliRunner

from ..conftest import LEADER_URL, SECRET

ROW = "row-canary-7f3a"
TOLD = "told-canary-91bc"
PLANTED = "planted-canary-c4d8"
"""Known to no process as a secret: told by the names that it has, or by the form of a URL, alone."""
KAFKA_SECRETS = ("sasl.password", "sasl.jaas.config", "ssl.key.password", "ssl.keystore.password",
                 "sasl.oauthbearer.client.secret", "consumer.sasl.password", "bootstrap.password")  # fmt: skip


@pytest.fixture
def kept_lines():
    root = logging.getLogger()
    before = root.handlers[:]
    logs.keep_recent()
    yield
    root.handlers[:] = before
    logs._recent = None
    redaction.forget()


class Told:
    """As `Support`, without a Kafka."""

    def tell(self, topics):
        assert topics == ["p.t"]
        properties = {"ssl.key.pem": TOLD, "group.id": "g", "security.protocol": "SSL"} | dict.fromkeys(
            KAFKA_SECRETS, f'x password="{PLANTED}";'
        )
        return {"worker": "leader:8083", "versions": support.versions(), "properties": support.shown(properties), "log": logs.recent()}  # fmt: skip


@pytest.fixture
def bundle(connect, herder, kept, cluster, tmp_path, monkeypatch, kept_lines):
    """Makes one of a cluster in which values are planted; gives the command's result and the files."""
    cluster.add("shop/a", {"unknown.token": TOLD, **dict.fromkeys(("a.password", "b.secret", "c.api.key"), PLANTED)})
    cluster.plan("shop/a", "RUNNING", worker="leader:8083")
    cluster.topics["shop/a"] = frozenset({"p.t"})
    cluster.workers.pop("follower:8083")
    kept.found = [ConnectorOffset({"server": "p", "task": 0}, {"commit_lsn": 7, "snapshot": {"key": [ROW]}})]
    redaction.remember([TOLD])
    logging.getLogger("cdcworker.test").warning("refused for %s", TOLD)

    def examined(question, timeout_s):
        return [{"check": "reach", "severity": "ok", "measured": "answers", "message": "fine"}]

    def make(*options, **settings):
        client = connect(herder, **{"offsets": kept, "support": Told(), "examine": examined, **settings})

        def request(method, url, **options):
            kept = {name: options[name] for name in ("json", "headers") if name in options}
            return client(method, url.removeprefix(LEADER_URL).removeprefix("http://worker"), **kept)

        monkeypatch.setattr(httpx, "request", request)
        monkeypatch.setattr(httpx, "get", lambda url, **options: request("GET", url, **options))
        path = tmp_path / "b.tar.gz"
        done = CliRunner().invoke(support_bundle, [str(path), "--url", "http://worker", "--wait", "0", *options])
        with tarfile.open(path) as found:
            files = {item.name.removeprefix("cdcworker-support/"): found.extractfile(item).read() for item in found}
        return done, files, path

    return make


def test_everything_that_helps_is_in_it(bundle):
    done, files, path = bundle()
    assert done.exit_code == 0, done.output
    folder, worker = "connectors/shop%2Fa", "workers/leader%3A8083"
    wanted = {"cluster.json", "journal.json", "connectors.json", f"{worker}/worker.json", f"{worker}/log.jsonl"}
    wanted |= {f"{worker}/metrics.txt", f"{worker}/loggers.json", "manifest.json"}
    wanted |= {f"{folder}/{name}.json" for name in ("info", "status", "topics", "offsets", "doctor")}
    assert wanted <= set(files)
    assert b"cdc_worker_info" in files[f"{worker}/metrics.txt"]
    assert json.loads(files[f"{worker}/worker.json"])["versions"]["confluent-kafka"]
    assert json.loads(files[f"{folder}/info.json"])["config"]["host"] == "db"
    assert b"refused for" in files[f"{worker}/log.jsonl"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_planted_value_is_in_it(bundle):
    _, files, _ = bundle()
    for name, data in files.items():
        for canary in (SECRET, TOLD, ROW, PLANTED):
            assert canary.encode() not in data, name
    offsets = json.loads(files["connectors/shop%2Fa/offsets.json"])
    assert offsets["offsets"][0]["offset"] == {"commit_lsn": 7, "snapshot": LEFT_OUT}
    properties = json.loads(files["workers/leader%3A8083/worker.json"])["properties"]
    assert (properties["group.id"], properties["security.protocol"]) == ("g", "SSL")
    assert properties["ssl.key.pem"] != TOLD


def test_what_cannot_be_had_is_named_and_the_rest_is_there(bundle):
    done, files, _ = bundle("--no-doctor", support=None, offsets=None)
    missing = {item["what"]: item["why"] for item in json.loads(files["manifest.json"])["missing"]}
    assert missing["worker leader:8083"] == "rest.not_available"
    assert missing["connectors/shop%2Fa/offsets.json"] == "rest.not_available"
    assert "connectors/shop%2Fa/doctor.json" not in {*files, *missing}
    assert "without worker leader:8083: rest.not_available" in done.output


def test_members_that_may_hold_rows_are_left_out_at_any_depth():
    content = {"a": [{"filters": {"t": "id = 7"}, "keys": [1], "rows": 3}], "snapshot": "initial", "found": []}
    assert without_rows(content) == {
        "a": [{"filters": LEFT_OUT, "keys": LEFT_OUT, "rows": 3}], "snapshot": "initial", "found": [],
    }  # fmt: skip


def test_the_last_lines_are_kept_and_no_more(kept_lines):
    logger = logging.getLogger("cdcworker.test")
    for number in range(logs.RECENT_LINES + 5):
        logger.warning("line %d", number)
    logger.warning("x" * (logs.RECENT_CHARS_MAX + 1))
    lines = [json.loads(line) for line in logs.recent()]
    assert len(lines) == logs.RECENT_LINES
    assert lines[-1]["cut"] > logs.RECENT_CHARS_MAX
    assert lines[-2]["message"] == f"line {logs.RECENT_LINES + 4}"
