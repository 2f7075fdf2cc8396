"""The configuration of one worker's herder."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cdcworker.coordinator.kafka.internal_topics import TopicNames


@dataclass(frozen=True)
class HerderConfig:
    """The properties of a worker that its herder needs. `kafka` holds the worker's Kafka client properties."""

    kafka: Mapping[str, str] = field(repr=False)
    group_id: str
    worker_id: str
    url: str
    topics: TopicNames
    offsets_partitions: int = 25
    status_partitions: int = 5
    session_timeout_s: float = 10.0
    state_dir: str = ""
    plugins_hash: str = ""
    version: str = ""
    capacity: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = -1
    providers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The `config.providers.*` properties of the worker."""
    plugins: Mapping[str, str] = field(default_factory=dict)
    """The version of each plugin, by every name that `connector.class` may have on this worker."""
    crash_delay_s: float = 0.0
    restart_delay_s: float = 60.0
    backend: Literal["kafka", "zookeeper", "memory"] = "kafka"
    zookeeper_connect: str = ""
    zookeeper_digest: str = field(default="", repr=False)
    accepted_identity: str = ""
    """The fingerprint of this cluster's identity; an operator sets it to take over a log that another cluster has
    written."""
    peer_tls: ssl.SSLContext | None = field(default=None, repr=False)
    """The TLS context that checks the certificates of other workers."""
