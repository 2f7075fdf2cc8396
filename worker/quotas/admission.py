"""Whether a change fits into the quotas: what it would add to the connectors and the tasks of each label."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from cdcworker.connectors.config.common_keys import tasks_max_of
from cdcworker.coordinator.model import Connector, PutConnector
from cdcworker.coordinator.model import Request as Command
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.quotas.settings import QuotaSettings

EXCEEDED: Final = declare(
    "quota.exceeded",
    "config",
    "The quota of a label is used up",
    "Delete connectors of this label, give them fewer tasks (tasks.max), or have the operator raise the quota in the file of "
    "quotas.file.",
)
LABEL_NEEDED: Final = declare(
    "quota.label_needed",
    "config",
    "A connector needs a label here that it has not got",
    "Create it with POST /connectors and the member labels, or with a file of `cdcworker apply` that has labels.",
)


class Share(NamedTuple):
    """What one connector uses of quotas, or several together."""

    connectors: int = 0
    tasks: int = 0


def may_grow(command: Command) -> bool:
    """Returns whether a command may use more of a quota than before."""
    return isinstance(command, PutConnector) and (command.config is not None or command.labels is not None)


def refusal(settings: QuotaSettings, connectors: Mapping[str, Connector], command: Command) -> CdcError | None:
    """Returns why the command does not fit into the quotas; None when it does. What uses more than a quota already may stay as it
    is, and become less."""
    if not isinstance(command, PutConnector) or not may_grow(command):
        return None
    stored = connectors.get(command.name)
    if stored is None and command.must_exist:
        return None
    before = dict(stored.labels) if stored is not None else {}
    labels = before if command.labels is None else command.labels
    lost = [key for key in settings.required if key not in labels and (stored is None or key in before)]
    if lost:
        return CdcError(LABEL_NEEDED, f"connector {command.name} needs the label {lost[0]}", where={"label": lost[0]})
    config = command.config if command.config is not None else stored.config if stored is not None else {}
    others = [one for name, one in connectors.items() if name != command.name]
    own = Share(1, _tasks(config))
    return next(_exceeded(settings, others, stored, labels, own), None)


def _exceeded(
    settings: QuotaSettings,
    others: Iterable[Connector],
    stored: Connector | None,
    labels: Mapping[str, str],
    own: Share,
) -> Iterator[CdcError]:
    for key, value in sorted(labels.items()):
        quota = settings.quota(key, value)
        if quota is None:
            continue
        had = _share(stored) if stored is not None and stored.labels.get(key) == value else Share()
        used = _together(one for one in others if one.labels.get(key) == value)
        for name, limit in (("connectors", quota.connectors), ("tasks", quota.tasks)):
            wanted, before, there = (getattr(share, name) for share in (own, had, used))
            if limit is not None and wanted > before and there + wanted > limit:
                yield CdcError(
                    EXCEEDED,
                    f"the label {key}={value} may have {limit} {name}; others use {there}, and this one would use {wanted}",
                    where={"label": key, "limit": limit},
                )


def _together(connectors: Iterable[Connector]) -> Share:
    shares = [_share(one) for one in connectors]
    return Share(len(shares), sum(share.tasks for share in shares))


def _share(connector: Connector) -> Share:
    return Share(1, _tasks(connector.config))


def _tasks(config: Mapping[str, str]) -> int:
    """Returns the most tasks that a config allows."""
    try:
        return tasks_max_of(config)
    except CdcError:
        return 1  # of a version that did not check it
