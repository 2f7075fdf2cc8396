"""The file of quotas: what is refused in it, and which quota holds for a value."""

import pytest
import yaml
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.config.worker_properties import parse as parse_worker
from cdcworker.worker.quotas import settings
from cdcworker.worker.quotas.settings import Quota, QuotaFile, parse
from cdcworker.worker.server.wiring import quotas_of

WORKER = {"bootstrap.servers": "k:9092", "group.id": "g", "rest.advertised.host.name": "me"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([], "quotas:"),
        ({"quotas": {}}, "quotas:"),
        ({"quotas": [], "quota": []}, "there is no quota"),
        ({"quotas": ["team"]}, "quotas[0]: expects an object"),
        ({"quotas": [{"label": "team", "conectors": 1}]}, "there is no conectors"),
        ({"quotas": [{"connectors": 1}]}, "quotas[0]: label is"),
        ({"quotas": [{"label": "a b", "connectors": 1}]}, "quotas[0]: label is"),
        ({"quotas": [{"label": "team"}]}, "neither connectors nor tasks"),
        ({"quotas": [{"label": "team", "tasks": -1}]}, "tasks is a number"),
        ({"quotas": [{"label": "team", "tasks": True}]}, "tasks is a number"),
        ({"quotas": [{"label": "team", "tasks": "5"}]}, "tasks is a number"),
        ({"quotas": [{"label": "team", "tasks": 1}] * 2}, "quotas[1]: team is there twice"),
        ({"quotas": [{"label": "team=a", "tasks": 1}] * 2}, "quotas[1]: team=a is there twice"),
        ({"quotas": [], "required": "team"}, "required:"),
        ({"quotas": [], "required": ["a b"]}, "required:"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_place(tmp_path, content, told):
    path = tmp_path / "quotas.yaml"
    path.write_text(yaml.safe_dump(content))
    path.chmod(0o600)
    with pytest.raises(CdcError) as caught:
        settings.read(path)
    assert caught.value.code == "quota.file_invalid"
    assert told in caught.value.message


def test_one_value_may_have_another_quota_than_the_others():
    items = [
        {"label": "team", "connectors": 2, "tasks": 5},
        {"label": "team=shop", "connectors": 9},
        {"label": "tier=", "tasks": 0},
    ]
    found = parse({"quotas": items, "required": ["team", "team"]})
    assert found.quota("team", "any") == Quota(2, 5)
    assert found.quota("team", "shop") == Quota(9, None)
    assert found.quota("tier", "") == Quota(None, 0)
    assert found.quota("tier", "gold") is None
    assert found.required == ("team",)


def test_the_file_is_read_again_when_it_changes(tmp_path):
    path, now = tmp_path / "quotas.yaml", [0.0]
    path.write_text(yaml.safe_dump({"quotas": []}))
    path.chmod(0o600)
    file = QuotaFile(path, lambda: now[0])
    path.write_text(yaml.safe_dump({"quotas": [{"label": "team", "connectors": 2}]}))
    now[0] += 2
    assert file.content().quota("team", "a") == Quota(2)


def test_a_worker_without_the_property_has_none(tmp_path):
    assert quotas_of(parse_worker(WORKER)[0].values, {}) is None
    path = tmp_path / "quotas.yaml"
    path.write_text(yaml.safe_dump({"quotas": [{"label": "team", "connectors": 2}]}))
    path.chmod(0o600)
    config, _ = parse_worker({**WORKER, "quotas.file": str(path)})
    assert quotas_of(config.values, {})().quota("team", "a") == Quota(2)
    path.chmod(0o666)
    with pytest.raises(CdcError, match="everybody may write"):
        quotas_of(config.values, {})
    config, _ = parse_worker({**WORKER, "quotas.file": str(path), "file.connector.paths": str(tmp_path)})
    with pytest.raises(CdcError, match="connectors could read it"):
        quotas_of(config.values, config.providers)
