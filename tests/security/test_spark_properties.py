"""What executors run comes from the operator: they hand objects to the driver, which has the worker's rights."""

from __future__ import annotations

import pytest
from cdcworker.connectors.registry.names import lookup
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.security import allowed_targets as reach

OPEN = "hdfs://n/spark.zip,registry.example/spark:4.1,local:/opt/spark/jars/*"
RULES = {reach.MASTERS: "yarn", reach.ARCHIVES: OPEN}
BASE = {"connector.class": "spark", "topics": "shop-a", "spark.launcher": "client", "spark.master": "yarn"}


@pytest.mark.parametrize(
    "item",
    [
        "spark.yarn.archive=file:///etc/passwd",
        "spark.yarn.archive=/etc/shadow",
        "spark.yarn.archive=hdfs://evil/spark.zip",
        "spark.yarn.archive=hdfs://n/spark.zip/../evil.zip",
        "spark.yarn.jars=/root/.ssh/*",
        "spark.yarn.jars = local:/tmp/*",
        "spark.kubernetes.container.image=evil.example/spark",
        "spark.kubernetes.container.image=registry.example/spark:4.1@evil",
        "spark.yarn.queue=q,spark.yarn.jars=hdfs://evil/x.jar",
    ],
)
def test_what_executors_run_is_named_by_the_operator(item):
    with pytest.raises(CdcError) as caught:
        reach.admit({**BASE, "spark.properties": item}, RULES)
    assert (caught.value.code, caught.value.where["key"]) == ("config.archive_not_allowed", "spark.properties")


def test_what_the_operator_names_is_taken():
    items = (
        "spark.yarn.archive=hdfs://n/spark.zip",
        "spark.kubernetes.container.image=registry.example/spark:4.1",
        "spark.yarn.jars=local:/opt/spark/jars/*",
        "spark.yarn.queue=q, spark.executor.instances=2",
    )
    for item in items:
        CONFIG_DEF.parse({**BASE, "warehouse": "delta", "warehouse.path": "/srv/lake", "spark.properties": item})
        reach.admit({**BASE, "spark.properties": item}, RULES)
    reach.admit({**BASE, "spark.properties": "spark.yarn.archive=hdfs://n/x.zip"}, {})


@pytest.mark.parametrize(
    "name",
    [
        *("spark.jars", "spark.jars.packages", "spark.jars.repositories", "spark.files", "spark.submit.pyFiles"),
        *("spark.driver.extraClassPath", "spark.executor.extraClassPath", "spark.driver.extraJavaOptions"),
        *("spark.executor.extraJavaOptions", "spark.plugins", "spark.extraListeners", "spark.sql.extensions"),
        *("spark.sql.catalog.x", "spark.sql.catalog.cdc_lake.io-impl", "spark.hadoop.fs.file.impl", "spark.hadoop.fs.defaultFS"),
        *("spark.serializer", "spark.eventLog.dir", "spark.local.dir", "spark.sql.warehouse.dir", "spark.master"),
        *("spark.driver.host", "spark.authenticate", "spark.network.crypto.enabled", "spark.ssl.keyStore", "spark.ui.proxyBase"),
        *("spark.kubernetes.executor.podTemplateFile", "spark.kubernetes.authenticate.oauthTokenFile", "spark.yarn.keytab"),
        *("spark.kubernetes.authenticate.submission.caCertFile", "spark.executorEnv.LD_PRELOAD", "spark.yarn.dist.files"),
    ],
)  # fmt: skip
def test_settings_that_load_classes_or_read_files_are_not_taken(name):
    with pytest.raises(CdcError) as caught:
        CONFIG_DEF.parse({**BASE, "warehouse": "delta", "warehouse.path": "/srv/lake", "spark.properties": f"{name}=x"})
    assert caught.value.code == "config.invalid"


@pytest.mark.parametrize(
    ("more", "is_told"),
    [
        ({"spark.launcher": "client", "spark.master": "spark://a:1"}, True),
        ({"spark.launcher": "client", "spark.master": "spark://a:1", "spark.authenticate.secret": "x" * 32}, False),
        ({"spark.launcher": "client", "spark.master": "yarn"}, False),
        ({}, False),
    ],
)
def test_the_doctor_and_validation_tell_of_a_standalone_cluster_without_a_secret(more, is_told, tmp_path):
    config = {"connector.class": "spark", "topics": "t", "warehouse": "parquet", "warehouse.path": str(tmp_path)}
    found = [item for item in lookup("spark").load()({**config, **more}).check() if item.key.startswith("spark.auth")]
    assert [(item.severity, item.code) for item in found] == [("warning", "doctor.advice")] * is_told
