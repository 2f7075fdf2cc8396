"""Which cluster of Spark's a config names, and what the driver is started with for it."""

from __future__ import annotations

import logging
import sys

import pyarrow as pa
import pytest
from cdcworker.connectors.config.definition import Secret
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.spark.runtime import java_gateway as gateway
from cdcworker.connectors.spark.runtime.cluster import SparkCluster, cluster_of, master_problem, masters
from cdcworker.connectors.spark.runtime.session import JavaRuntime
from cdcworker.connectors.warehouses.postgres import parallel_staging as parallel
from cdcworker.connectors.warehouses.postgres.kind import staging_plan
from cdcworker.connectors.warehouses.postgres.ledger import PostgresLedger
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.security import allowed_targets as reach

BASE = {
    "connector.class": "spark",
    "topics": "a",
    "warehouse.hostname": "h",
    "warehouse.user": "u",
    "warehouse.dbname": "d",
}
MASTER = "spark://spark.internal:7077"
CLIENT = {**BASE, "spark.launcher": "client", "spark.master": MASTER}
PACKED = {
    **CLIENT,
    "spark.archives": "/srv/env.tar.gz#environment, hdfs://n/more.zip",
    "spark.pyspark.python": "./environment/bin/python",
}
SECRET = "long-enough\\-for-it"


@pytest.mark.parametrize(
    "master",
    [MASTER, "spark://a:1,b:65535", "yarn", "k8s://https://10.0.0.1:6443", "k8s://api.internal", "k8s://http://a:80/"],
)
def test_masters_of_a_cluster_are_taken(master):
    assert master_problem(master) is None
    assert cluster_of(CONFIG_DEF.parse({**CLIENT, "spark.master": master})).master == master


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[4]", "local-cluster[1,1,1024]", "mesos://a:1", "yarn-client", "yarn-cluster", "spark://a"),
        *("spark://a:0", "spark://a:70000", "spark://a:1,", "spark://:1", "spark://u@a:1", "k8s://ftp://a", "k8s://"),
        *("k8s://https://a/b", "spark://a:1/x", "http://a:1", "spark://a:1 --conf"),
    ],
)
def test_other_masters_are_refused_by_their_form(master):
    with pytest.raises(CdcError) as caught:
        CONFIG_DEF.parse({**CLIENT, "spark.master": master})
    assert caught.value.code == "config.invalid"
    assert "spark.master expects spark://host:port" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({**BASE, "spark.master": MASTER}, "spark.master needs spark.launcher=client"),
        ({**BASE, "spark.launcher": "client"}, "spark.master is required"),
        ({**BASE, "spark.launcher": "cluster"}, "spark.launcher: String must be one of"),
        ({**CLIENT, "spark.properties": "spark.jars=/x.jar"}, "does not take spark.jars"),
        ({**CLIENT, "spark.properties": "spark.driver.extraJavaOptions=-x"}, "does not take"),
        ({**CLIENT, "spark.properties": "spark.task.maxFailures"}, "expects name=value"),
        ({**CLIENT, "spark.authenticate.secret": "short"}, "expects at least 16"),
        ({**CLIENT, "spark.driver.host": "a/b"}, "spark.driver.host"),
        ({**CLIENT, "spark.pyspark.python": "python -c x"}, "expects an absolute path"),
        ({**CLIENT, "spark.pyspark.python": "./environment/../x"}, "expects an absolute path"),
        ({**CLIENT, "spark.pyspark.python": "./environment/bin/python"}, "is in none of spark.archives"),
        ({**PACKED, "spark.archives": "/srv/env.tar.gz#other"}, "is in none of spark.archives"),
        ({**PACKED, "spark.archives": "env.tar.gz#environment"}, "expects absolute paths or URIs"),
        ({**PACKED, "spark.archives": "/srv/env.tar.gz#../environment"}, "expects absolute paths or URIs"),
        ({**PACKED, "spark.archives": "/etc/passwd#environment"}, "expects absolute paths or URIs"),
        ({**BASE, "spark.archives": "/srv/env.tar.gz#environment"}, "spark.archives needs spark.launcher=client"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(config, problem):
    with pytest.raises(CdcError) as caught:
        CONFIG_DEF.parse(config)
    assert caught.value.code == "config.invalid"
    assert problem in str(caught.value)


def test_without_a_cluster_nothing_but_this_machine_is_named(tmp_path):
    assert cluster_of(CONFIG_DEF.parse(BASE)) is None
    found = JavaRuntime("java", ("/a.jar",), cores=3).all_settings(tmp_path)
    assert found["spark.master"] == "local[3]"
    assert found["spark.driver.host"] == found["spark.driver.bindAddress"] == "127.0.0.1"
    assert found["spark.authenticate"] == found["spark.network.crypto.enabled"] == "true"
    assert not [name for name in found if "secret" in name], "Spark makes one itself"
    assert "spark.jars" not in found
    assert gateway._address("local[3]") == {"SPARK_LOCAL_IP": "127.0.0.1"}


def test_a_cluster_gets_the_libraries_and_an_address_and_no_more_than_its_share(tmp_path):
    config = {
        **CLIENT,
        "spark.driver.host": "10.1.1.1",
        "spark.driver.port": "7001",
        "spark.properties": "spark.task.maxFailures=8, spark.speculation=true",
    }
    runtime = JavaRuntime("java", ("/a.jar", "/b.jar"), cores=5, cluster=cluster_of(CONFIG_DEF.parse(config)))
    found = runtime.all_settings(tmp_path)
    assert found["spark.master"] == MASTER
    assert found["spark.jars"] == "/a.jar,/b.jar"
    assert found["spark.cores.max"] == "5"
    assert found["spark.pyspark.python"] == sys.executable
    assert found["spark.driver.host"] == "10.1.1.1"
    assert found["spark.driver.port"] == "7001"
    assert "spark.driver.bindAddress" not in found
    assert "spark.driver.blockManager.port" not in found
    assert found["spark.task.maxFailures"] == "8"
    assert found["spark.speculation"] == "true"
    assert found["spark.ui.enabled"] == "false"
    assert gateway._address(MASTER) == {}


def test_large_tables_are_staged_by_threads_of_the_driver_or_by_executors():
    plan = staging_plan(CONFIG_DEF.parse({**BASE, "spark.cores": "3"}), False)
    assert (plan.count, plan.min_bytes) == (3, 32 << 20)
    assert plan.run is not None
    staging = parallel.ParallelStaging("", PostgresLedger("s", 0), staging_plan(CONFIG_DEF.parse(CLIENT), True))
    rows = pa.table({"a": [b"x" * (33 << 20)]})
    assert not staging.wants(rows)  # there are no executors yet
    staging.attach(lambda: None)
    assert staging.wants(rows)
    assert not staging.wants(rows.slice(0, 0))


def test_connections_are_authenticated_where_spark_has_a_secret_and_else_it_is_said(caplog):
    for master in ("yarn", "k8s://https://a:1"):
        assert SparkCluster(master).settings(2, ())["spark.authenticate"] == "true"
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert "spark.authenticate" not in SparkCluster(MASTER).settings(2, ())
    assert "not authenticated" in caplog.text
    found = SparkCluster(MASTER, secret=Secret(SECRET)).settings(2, ())
    assert found["spark.network.crypto.enabled"] == "true"
    assert SECRET not in str(found)


def test_a_secret_goes_by_a_file_that_nobody_else_reads(tmp_path):
    made = object.__new__(gateway.JavaGateway)
    made._work = tmp_path
    arguments = made._arguments({"spark.master": MASTER, "spark.authenticate.secret": Secret(SECRET)})
    assert arguments == ["--conf", f"spark.master={MASTER}", "--properties-file", str(tmp_path / "secrets")]
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "secrets").read_text() == f"spark.authenticate.secret={SECRET}\n".replace("\\", "\\\\")


def test_a_worker_lets_connectors_run_on_the_clusters_that_it_names_and_on_no_other():
    two = "spark://a:1,b:2"
    assert masters(two) == ["spark://a:1", "spark://b:2"]
    reach.admit({"spark.master": two}, {reach.MASTERS: "yarn,spark://b:2,spark://a:1"})
    reach.admit({"spark.master": ""}, {reach.MASTERS: ""})
    for allowed in ("", "spark://a:1", "spark://a:11,spark://b:2"):
        with pytest.raises(CdcError) as caught:
            reach.admit({"spark.master": two}, {reach.MASTERS: allowed})
        assert caught.value.code == "config.master_not_allowed"


def test_archives_go_to_executors_where_the_interpreter_may_be_in_one_of_them(monkeypatch):
    cluster = cluster_of(CONFIG_DEF.parse(PACKED))
    monkeypatch.setattr("os.access", lambda path, _: path == "/srv/env.tar.gz")
    found = cluster.settings(2, ())
    assert found["spark.archives"] == "/srv/env.tar.gz#environment,hdfs://n/more.zip"
    assert found["spark.pyspark.python"] == "./environment/bin/python"
    inside = CONFIG_DEF.parse({**PACKED, "spark.pyspark.python": "./more.zip/bin/python"})
    assert cluster_of(inside).python == "./more.zip/bin/python"
    assert "spark.archives" not in cluster_of(CONFIG_DEF.parse(CLIENT)).settings(2, ())
    monkeypatch.setattr("os.access", lambda path, _: False)
    with pytest.raises(CdcError) as caught:
        cluster.settings(2, ())
    assert (caught.value.code, caught.value.where["file"]) == ("spark.archive", "/srv/env.tar.gz")


def test_a_worker_lets_connectors_hand_on_the_archives_that_it_names_and_no_others():
    config = {"spark.archives": PACKED["spark.archives"]}
    reach.admit(config, {reach.ARCHIVES: "hdfs://n/more.zip,/srv/env.tar.gz,/srv/a.zip"})
    reach.admit({}, {reach.ARCHIVES: ""})
    for allowed in ("", "/srv/env.tar.gz", "/srv/env.tar.gz#environment,hdfs://n/more.zip"):
        with pytest.raises(CdcError) as caught:
            reach.admit(config, {reach.ARCHIVES: allowed})
        assert caught.value.code == "config.archive_not_allowed"
