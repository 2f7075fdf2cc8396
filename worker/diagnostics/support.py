"""What one worker can say about itself for a support bundle: versions, its settings without secrets, topics, its last lines."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.config.definition import MASK
from cdcworker.coordinator.kafka.clients import make_admin
from cdcworker.coordinator.kafka.errors import text_of
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.config.worker_properties import WORKER_DEF, WorkerConfig
from cdcworker.worker.logs.redaction import clean_all
from cdcworker.worker.logs.setup import recent

LIBRARIES: Final = (
    "confluent-kafka", "fastavro", "httpx", "psycopg", "pyarrow", "pyspark", "starlette", "uvicorn",
)  # fmt: skip
OPEN: Final = (
    "bootstrap.servers",
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "client.id",
    "client.rack",
)
"""Properties of Kafka's clients whose values are told; of any other only that it is set."""
TOPICS_MAX: Final = 500
ANSWER_S: Final = 10.0
Json = dict[str, Any]


class SupportReport:
    def __init__(self, config: WorkerConfig, own_topics: Sequence[str]) -> None:
        self._config = config
        self._own = tuple(own_topics)

    def tell(self, topics: Sequence[str]) -> Json:
        """`topics`: those of the connectors. What cannot be had says so in its place."""
        found = {
            "worker": self._config.worker_id,
            "versions": versions(),
            "machine": machine(),
            "properties": shown(self._config.properties),
            "topics": self._topics(sorted({*self._own, *topics})),
            "log": recent(),
        }
        return dict(clean_all(found))

    def _topics(self, names: Sequence[str]) -> Json:
        try:
            return described(self._config.kafka, names[:TOPICS_MAX])
        except CdcError as error:
            return {"error": error.to_dict()}


def versions() -> Json:
    found: Json = {"cdcworker": importlib.metadata.version("cdcworker"), "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    from confluent_kafka import libversion

    return found | {"librdkafka": libversion()[0]}


def machine() -> Json:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "system": platform.platform(),
        "platform": sys.platform,
        "processors": os.cpu_count(),
        "memory_bytes": pages * size,
        "load": list(os.getloadavg()),
    }


def shown(properties: Mapping[str, str]) -> dict[str, str]:
    """Known keys with their secrets masked; of the rest, which goes to Kafka's clients, only what can be no secret."""
    masked = WORKER_DEF.mask(properties)
    return {name: text if name in WORKER_DEF.keys or name in OPEN else MASK for name, text in sorted(masked.items())}


def described(kafka: Mapping[str, str], names: Sequence[str]) -> Json:
    """Partitions, replicas, and the settings that differ from the broker's."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    admin = make_admin(kafka, client_id="support-admin")
    try:
        known = admin.list_topics(timeout=ANSWER_S).topics
    except KafkaException as exc:
        return {"error": text_of(exc)}
    out: Json = {}
    for name in names:
        topic = known.get(name)
        if topic is not None and topic.error is None:
            replicas = {len(part.replicas) for part in topic.partitions.values()}
            out[name] = {"partitions": len(topic.partitions), "replicas": sorted(replicas)}
    asked = [ConfigResource(ResourceType.TOPIC, name) for name in out]
    for resource, answer in (admin.describe_configs(asked, request_timeout=ANSWER_S) if asked else {}).items():
        try:
            entries = answer.result(ANSWER_S)
        except (KafkaException, TimeoutError) as exc:
            out[resource.name]["settings"] = {"error": type(exc).__name__}
            continue
        out[resource.name]["settings"] = {name: entry.value for name, entry in entries.items() if not entry.is_default}
    return out
