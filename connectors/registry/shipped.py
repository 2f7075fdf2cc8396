"""The connectors that ship with the worker. Each is named by its module, which is imported when one of its tasks or configs needs it."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.registry.plugin import Plugin
from cdcworker.connectors.snapshot_jobs import MAINTENANCE, SNAPSHOT

_MYSQL = "cdcworker.connectors.mysql.source.connector:MySqlSource"
_MYSQL_CHECKS = ("cdcworker.connectors.mysql.doctor.checks",)
PLUGINS: Final = (
    Plugin(
        "postgres",
        "source",
        "cdcworker.connectors.postgres.source.connector:PostgresSource",
        ("io.debezium.connector.postgresql.PostgresConnector", "PostgresConnector"),
        "PostgreSQL logical replication",
        jobs=(SNAPSHOT,),
        schemes=("postgresql", "postgres"),
        measures=True,
        debezium_name="postgresql",
        checks=(
            "cdcworker.connectors.postgres.doctor.live_checks",
            "cdcworker.connectors.postgres.transport.certificate",
        ),
    ),
    Plugin(
        "mysql",
        "source",
        _MYSQL,
        ("io.debezium.connector.mysql.MySqlConnector", "MySqlConnector"),
        "The binary log of MySQL",
        jobs=(SNAPSHOT,),
        schemes=("mysql",),
        measures=True,
        tls_key="ssl.mode",
        needs=("pymysql",),
        checks=_MYSQL_CHECKS,
    ),
    Plugin(
        "mariadb",
        "source",
        _MYSQL,
        ("io.debezium.connector.mariadb.MariaDbConnector", "MariaDbConnector"),
        "The binary log of MariaDB",
        jobs=(SNAPSHOT,),
        schemes=("mariadb",),
        measures=True,
        tls_key="ssl.mode",
        needs=("pymysql",),
        checks=_MYSQL_CHECKS,
    ),
    Plugin(
        "datagen",
        "source",
        "cdcworker.connectors.datagen.connector:DatagenSource",
        title="Generated rows, for trials and tests",
    ),
    Plugin(
        "file",
        "source",
        "cdcworker.connectors.file.source:FileSource",
        ("org.apache.kafka.connect.file.FileStreamSourceConnector", "FileStreamSourceConnector", "FileStreamSource"),
        "Lines of a file",
    ),
    Plugin(
        "file-sink",
        "sink",
        "cdcworker.connectors.file.sink:FileSink",
        ("org.apache.kafka.connect.file.FileStreamSinkConnector", "FileStreamSinkConnector", "FileStreamSink"),
        "Lines into a file",
    ),
    Plugin(
        "http",
        "source",
        "cdcworker.connectors.http_source.connector:HttpSource",
        title="Items of a JSON API",
    ),
    Plugin(
        "query",
        "source",
        "cdcworker.connectors.query_source.connector:QuerySource",
        ("io.confluent.connect.jdbc.JdbcSourceConnector", "JdbcSourceConnector", "JdbcSource"),
        "Rows of a query, run again and again",
    ),
    Plugin(
        "http-sink",
        "sink",
        "cdcworker.connectors.targets.http.connector:HttpSink",
        (
            "io.aiven.kafka.connect.http.HttpSinkConnector",
            "io.confluent.connect.http.HttpSinkConnector",
            "HttpSinkConnector",
            "HttpSink",
        ),
        "Requests to a web service",
        measures=True,
    ),
    Plugin(
        "jdbc-sink",
        "sink",
        "cdcworker.connectors.targets.jdbc.connector:JdbcSink",
        (
            "io.debezium.connector.jdbc.JdbcSinkConnector",
            "io.confluent.connect.jdbc.JdbcSinkConnector",
            "JdbcSinkConnector",
            "JdbcSink",
        ),
        "Rows of PostgreSQL, MySQL or MariaDB",
        measures=True,
        needs=("psycopg", "pymysql"),
    ),
    Plugin(
        "nats",
        "sink",
        "cdcworker.connectors.targets.nats.connector:NatsSink",
        title="Messages of a JetStream stream of NATS",
        measures=True,
        tls_key="nats.ssl.enabled",
        needs=("nats",),
    ),
    Plugin(
        "opensearch",
        "sink",
        "cdcworker.connectors.targets.opensearch.connector:OpenSearchSink",
        (
            "io.confluent.connect.elasticsearch.ElasticsearchSinkConnector",
            "io.aiven.kafka.connect.opensearch.OpenSearchSinkConnector",
            "io.aiven.connect.elasticsearch.ElasticsearchSinkConnector",
            "ElasticsearchSinkConnector",
            "ElasticsearchSink",
            "OpenSearchSinkConnector",
            "OpenSearchSink",
        ),
        "Documents of OpenSearch or Elasticsearch",
        measures=True,
    ),
    Plugin(
        "redis",
        "sink",
        "cdcworker.connectors.targets.redis.connector:RedisSink",
        (
            "com.redis.kafka.connect.RedisSinkConnector",
            "com.github.jcustenborder.kafka.connect.redis.RedisSinkConnector",
        ),
        "Streams, hashes, JSON, strings and sets in Redis",
        measures=True,
        tls_key="redis.ssl.enabled",
        needs=("redis",),
    ),
    Plugin(
        "s3",
        "sink",
        "cdcworker.connectors.targets.s3.connector:FilesSink",
        ("io.confluent.connect.s3.S3SinkConnector",),
        "Files in S3, Google's or Azure's store, or a folder",
        measures=True,
    ),
    Plugin(
        "stdout",
        "sink",
        "cdcworker.connectors.targets.stdout.connector:StdoutSink",
        title="Records as lines of JSON, for trials",
        measures=True,
    ),
    Plugin(
        "spark",
        "sink",
        "cdcworker.connectors.spark.connector:SparkSink",
        ("cdcworker.spark",),
        "Spark Structured Streaming into a warehouse",
        jobs=(MAINTENANCE,),
        measures=True,
        needs=("pyspark", "pyarrow"),
        checks=("cdcworker.connectors.warehouses.postgres.connection",),
    ),
)
BY_NAME: Final = {name: plugin for plugin in PLUGINS for name in (plugin.name, *plugin.aliases)}
