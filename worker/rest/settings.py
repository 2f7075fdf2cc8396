"""The settings of one REST server: its limits, what guards it, and the services of the worker that handlers use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from cdcworker.coordinator.model import Connector, JsonObject, TaskId
from cdcworker.schemas.log import SchemaLog
from cdcworker.schemas.threads import THREAD_DEATHS, ThreadDeaths
from cdcworker.schemas.topic_access import Exists, TopicAccess
from cdcworker.schemas.untrusted.refusals import REFUSALS, Refusals
from cdcworker.worker.dead_letters.service import DeadLetters
from cdcworker.worker.diagnostics.explain import Explainer
from cdcworker.worker.diagnostics.support import SupportReport
from cdcworker.worker.diagnostics.tail import TailChildren
from cdcworker.worker.diagnostics.verify import Verifier
from cdcworker.worker.http import errors as e
from cdcworker.worker.identity.login import ConsoleLogin
from cdcworker.worker.offsets.model import ConnectorOffsets
from cdcworker.worker.quotas.settings import QuotaSettings
from cdcworker.worker.security.audit import Audit
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.tls import TlsContexts
from cdcworker.worker.security.worker_secrets import Secrets, plain_only
from cdcworker.worker.validation.validate import CHECK_TIMEOUT_S

Service = TypeVar("Service")


class Alerts(Protocol):
    """Who knows the incidents of connectors and the receivers that are told of them."""

    def incidents(self) -> Sequence[JsonObject]:
        """Returns the incidents, the newest first."""

    def objectives(self) -> Sequence[JsonObject]:
        """Returns how connectors do by the objectives that have a target."""

    def problems(self) -> Mapping[str, str]:
        """Returns why receivers take no messages, by their names."""


def available(service: Service | None, what: str) -> Service:
    """Returns the service. RestError 501 when this worker does not have it; `what` begins the sentence that says so."""
    if service is None:
        raise e.not_available(what)
    return service


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits in time, size and number of requests, each with its reason where it is not Kafka Connect's own number."""

    reply_timeout_s: float = 90.0
    leader_wait_s: float = 2.0
    """Seconds that a request which finds no leader waits for one: a clean change of leader takes about a second."""
    catch_up_s: float = 1.0
    """Seconds that the answer to a forwarded change waits until this worker has read that change in the config log."""
    patch_s: float = 10.0
    """Seconds for which a PATCH is computed again while other requests change the same connector."""
    body_bytes_max: int = 1 << 20
    check_timeout_s: float = CHECK_TIMEOUT_S
    checks_max: int = 2
    """Validation children that run at the same time: each costs an interpreter and a database connection."""
    judgements_max: int = 2
    """Configs and schemas that are judged or masked at the same time, by threads beside the event loop."""
    judgements_waiting_max: int = 64
    offset_calls_max: int = 4
    """Requests at the same time that ask Kafka, sources, targets and children: offsets, dead letters, doctor, explain."""
    offset_calls_per_caller_max: int = 2
    """Of these one user has so many, and waits for his own: the others are left to others."""
    plans_max: int = 2
    """Connectors that are split into tasks at the same time for dry runs."""
    streams_per_caller_max: int = 50
    """Event streams of one user, or of one address where nobody has to say who asks: half of what a worker has."""
    change_readers_max: int = 4
    change_readers_per_caller_max: int = 3
    """Readers of rows are processes: one is left for others."""
    events_s_max: float = 3600.0
    """Seconds after which an event stream ends; its client then connects again and misses nothing."""


@dataclass(frozen=True, slots=True)
class Protection:
    """The parts that guard the REST server: authentication and roles, TLS, the audit log, and the key between workers."""

    audit: Audit = field(default_factory=Audit)
    gate: Gate = field(default_factory=Gate)
    tls: TlsContexts | None = None
    session_key_ttl_s: float = 0.0
    """Seconds for which workers sign their requests with one session key; 0: this server does not renew the key."""
    worker_secrets: Secrets = plain_only
    """The operator's secrets, of which and of the session key the keys that sign are made."""
    login: ConsoleLogin | None = None
    """Logs people in to the console at an identity provider."""


@dataclass(frozen=True, slots=True)
class Services:
    """Services of the worker that handlers use. A worker may lack each of them (None): `available` then refuses."""

    offsets: ConnectorOffsets | None = None
    """Reads and alters the offsets of connectors."""
    schemas: Callable[[], SchemaLog] | None = None
    """Returns the schema log as far as this worker has read it."""
    examine: Callable[[JsonObject, float], list[JsonObject]] | None = None
    """Runs the doctor on a connector within a number of seconds and returns its findings."""
    verifier: Verifier | None = None
    """Compares sinks with their sources."""
    tail: TailChildren | None = None
    """Reads the topics of connectors for clients that watch rows change."""
    explainer: Explainer | None = None
    """Follows single rows from the source to the sinks."""
    dead_letters: DeadLetters | None = None
    """Shows the dead letters of sinks and applies them again."""
    support: SupportReport | None = None
    """Collects what this worker adds to a support bundle."""
    plan: Callable[[Connector], Sequence[Mapping[str, str]]] | None = None
    """Splits a connector into the configs of its tasks, for dry runs."""
    existing: Exists | None = None
    """Returns which of some topics exist, for validation."""
    unassigned_lag: Callable[[], Mapping[TaskId, Mapping[str, Any]]] | None = None
    """Returns, while this worker leads, what was measured of tasks that no worker runs."""
    alerts: Alerts | None = None
    """Knows the incidents of connectors."""
    quotas: Callable[[], QuotaSettings] | None = None
    """Returns how many connectors and tasks those of a label may be."""


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """All settings of one REST server."""

    limits: RequestLimits = field(default_factory=RequestLimits)
    protection: Protection = field(default_factory=Protection)
    services: Services = field(default_factory=Services)
    topic_tracking: bool = True
    """`topic.tracking.enable` of Kafka Connect."""
    topic_tracking_reset: bool = True
    """`topic.tracking.allow.reset` of Kafka Connect."""
    threads: ThreadDeaths = THREAD_DEATHS
    """The threads of this process that have died."""
    refusals: Refusals = REFUSALS
    """The records of the cluster's topics that this process has refused."""
    topics: TopicAccess = field(default_factory=TopicAccess)
    """The topics that no connector may use."""
    warnings: tuple[str, ...] = ()
    """What this worker has warned about its own properties."""
    takes_unknown_keys: bool = False
    """True if a config may have keys that its connector does not know (`config.unknown.keys=warn`)."""
    console: bool = True
    """False if this worker serves no console (`ui.enabled`)."""
    error_details: bool = False
    """True if errors have all members for every client (`rest.error.details`)."""
    configs_as_written: bool = False
    """True if admins read the configs of their connectors with the secrets in them."""
    live_checks: bool = True
    """True if validation also asks the systems outside, as far as the config names them."""
