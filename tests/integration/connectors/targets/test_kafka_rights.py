"""The sink into another Kafka at brokers that allow nothing by themselves: the rights of the docs page are enough, and a login that is
wrong halts the task."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest
from cdcworker.connectors.api.record_target import RecordBatch, TargetPlace, TargetRecord
from cdcworker.connectors.targets.kafka.config import CONFIG_DEF
from cdcworker.connectors.targets.kafka.target import KafkaTarget
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.kafka import EmbeddedKafka
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.conftest import QUICK_COMPILER_ONLY, serving
from tests.integration.connectors.targets.kafka_mirror import config_to
from tests.integration.worker.generators.test_kafka_acls import GUARDED, login

pytestmark = [pytest.mark.kafka, pytest.mark.long]
PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "mirror-to-kafka.md"
KINDS = {
    "topics that begin with": (ResourceType.TOPIC, ResourcePatternType.PREFIXED),
    "topic": (ResourceType.TOPIC, ResourcePatternType.LITERAL),
    "transactional ids that begin with": (ResourceType.TRANSACTIONAL_ID, ResourcePatternType.PREFIXED),
}


@pytest.fixture(scope="module")
def guarded(devstack_dir):
    made = EmbeddedKafka(devstack_dir / "rights", GUARDED, heap="256m", jvm_options=QUICK_COMPILER_ONLY)
    with serving(made) as broker:
        yield broker


def rights(alias):
    """The rows of the page's table whose resources have names."""
    for kind, name, operations in re.findall(
        r"^\| (topics? ?.*?|trans.*?) `(.*?)` \| (.*?) \|$", PAGE.read_text(), re.MULTILINE
    ):
        resource, pattern = KINDS[kind]
        for word in re.findall(r"`(\w+)`", operations):
            operation = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).upper()
            yield AclBinding(
                resource, name.replace("ALIAS", alias), pattern, "User:cdc", "*", AclOperation[operation], AclPermissionType.ALLOW
            )  # fmt: skip


def opened(kafka, guarded, alias, password):
    own = {f"target.{name}": value for name, value in login("cdc").items()} | {"target.sasl.password": password}
    config = CONFIG_DEF.parse({"topics": "t", **config_to(guarded, alias), **own})
    return KafkaTarget(
        TargetPlace(config, "kafka", connector=alias, epoch=(1, 0), kafka={"bootstrap.servers": kafka.bootstrap})
    )


def test_the_rights_that_the_docs_name_are_enough_and_less_halts_the_task(kafka, guarded):
    alias = f"a{uuid.uuid4().hex[:8]}"
    batch = RecordBatch([TargetRecord("id-0-0", "t", 0, 0, 1_700_000_000_000, value=b"v")])
    wrong, denied = opened(kafka, guarded, alias, "s3cret"), opened(kafka, guarded, alias, "cdc")
    for target in (wrong, denied):
        with pytest.raises(CdcError) as error:
            target.write(batch)
        assert error.value.code == "sink.target_refuses"
        assert "s3cret" not in str(error.value)
    assert [finding.severity for finding in wrong.check()] == ["error"]
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap, **login("admin")})
    found = list(rights(alias))
    assert len(found) >= 9
    for answer in admin.create_acls(found).values():
        answer.result(30)
    denied.write(batch)
    denied.close()
