"""A set of connectors and a cluster: what the cluster has, the plan between the two, and the plan carried out."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdcworker.worker.cli.client.connection_requests import present_connections
from cdcworker.worker.cli.client.connector_requests import (
    live_query,
    path_of,
    previewed,
    validated,
    with_secrets_compared,
)
from cdcworker.worker.cli.client.remote import KEY_HEADER, RemoteCluster
from cdcworker.worker.cli.connector_sets import connections
from cdcworker.worker.cli.connector_sets.connections import PlannedConnection
from cdcworker.worker.cli.connector_sets.files import WantedConnection, WantedConnector, WantedSet
from cdcworker.worker.cli.connector_sets.plan import (
    SNAPSHOT_MODE,
    Effect,
    PlannedConnector,
    PresentConnector,
    SetPlan,
    as_told,
    in_order,
    new_labels,
    reads,
    superfluous,
)
from cdcworker.worker.cli.render import connector_texts
from cdcworker.worker.cli.render.output import EXIT_ENVIRONMENT, CliError

FORBIDDEN, GONE = 403, 404


def present_connectors(remote: RemoteCluster) -> dict[str, PresentConnector]:
    """Returns the connectors that the caller may see, by name.

    The versions are older than the configs, if anything: a change in between is found when the plan is carried out.
    """
    listed = {item["name"]: item for item in remote.get("/v1/connectors")["connectors"]}
    shown = remote.get("/connectors?expand=info")
    return {
        name: PresentConnector(name, item["type"], item["version"], shown[name]["info"]["config"], item["labels"])
        for name, item in listed.items()
        if name in shown
    }


def make_plan(
    remote: RemoteCluster,
    wanted: WantedSet,
    label: tuple[str, str],
    *,
    prune: bool,
    no_live_checks: bool,
) -> SetPlan:
    """Returns what has to happen for the cluster to have the connectors as they are wanted. Nothing is changed."""
    present = present_connectors(remote)
    found = connections.planned(remote, wanted.connections, no_live_checks)
    # Those that the cluster has as they are wanted it knows by itself.
    new = {one.name for one in found if one.effect != "unchanged"}
    judge = _Judge(remote, {one.name: one for one in wanted.connections if one.name in new}, no_live_checks)
    planned = [_planned(judge, one, present.get(one.name)) for one in wanted.connectors]
    if prune:
        planned += [_deletion(remote, one) for one in superfluous(present, wanted.connectors, label)]
    return SetPlan(in_order(planned), prune, "=".join(filter(None, label)), found)


@dataclass(frozen=True)
class _Judge:
    """Has the cluster judge connectors; `connections`: those of the set that it does not have as they are wanted."""

    remote: RemoteCluster
    connections: Mapping[str, WantedConnection]
    no_live_checks: bool


def _planned(judge: _Judge, wanted: WantedConnector, present: PresentConnector | None) -> PlannedConnector:
    remote = judge.remote
    changes = connector_texts.differences(present.config if present is not None else None, wanted.config)
    if present is not None:
        changes = with_secrets_compared(remote, wanted.name, wanted.config, changes)
    labels = new_labels(wanted, present)
    kind, version = (present.kind, present.version) if present is not None else ("", None)
    if present is not None and not changes:
        if labels is None:
            return PlannedConnector(wanted.name, "unchanged", kind, version)
        refused = _refusal(remote, lambda: _labelled(remote, wanted.name, labels))
        return PlannedConnector(wanted.name, "changed", kind, version, labels=labels, findings=refused)
    effect: Effect = "created" if present is None else "changed"
    judged = _judged(judge, wanted, None if present is None else labels, present is None)
    kind, tasks = kind or judged.preview.get("type", ""), judged.preview.get("tasks", {})
    return PlannedConnector(
        wanted.name,
        effect,
        kind,
        version,
        as_told(connector_texts.hidden(changes), judged.told),
        labels,
        {verb: tasks[verb] for verb in ("start", "restart", "stop") if tasks.get(verb)},
        reads(effect, kind, wanted.config, changes, takes_snapshots=SNAPSHOT_MODE in judged.told),
        judged.findings,
    )


@dataclass(frozen=True)
class _Judged:
    """What the cluster says to a config."""

    findings: Sequence[Mapping[str, Any]]
    preview: Mapping[str, Any] = field(default_factory=dict)
    """What it would do; empty where it is refused."""
    told: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Values of the config by key, `from` and `to`, with the secrets masked that only the cluster knows to be some."""


def _judged(judge: _Judge, wanted: WantedConnector, labels: Mapping[str, str] | None, is_new: bool) -> _Judged:
    """Returns what the cluster says to the connector; a refusal of this one is a finding."""
    remote = judge.remote
    found: list[Mapping[str, Any]] = []
    told: dict[str, Mapping[str, Any]] = {}
    preview: dict[str, Any] = {}

    def ask() -> None:
        config = connections.with_connection(remote, wanted.config, judge.connections)
        report = validated(remote, config, no_live_checks=judge.no_live_checks)
        found.extend(report["findings"])
        told.update((item["value"]["name"], {"to": item["value"]["value"]}) for item in report["configs"])
        if report["error_count"]:
            return
        if is_new:
            preview.update(
                remote.ask(
                    "POST", "/connectors?validate=false&dry_run=true", {**wanted.body(), "config": config}
                ).content
            )
        else:
            preview.update(previewed(remote, wanted.name, config))
        told.update((item["key"], item) for item in preview["changes"])
        if labels is not None:
            _labelled(remote, wanted.name, labels)

    found.extend(_refusal(remote, ask))
    return _Judged(found, preview, told)


def _labelled(remote: RemoteCluster, name: str, labels: Mapping[str, str]) -> None:
    remote.ask("PUT", f"{_labels_path(name)}?dry_run=true", dict(labels))


def _labels_path(name: str) -> str:
    return f"/v1{path_of(name)}/labels"


def _refusal(remote: RemoteCluster, ask: Callable[[], None]) -> list[Mapping[str, Any]]:
    """Returns a finding where the cluster refuses what is asked; raises CliError where it cannot be asked at all."""
    try:
        ask()
    except CliError as error:
        if error.exit_code == EXIT_ENVIRONMENT and error.error.get("error_code") != FORBIDDEN:
            raise
        return [{"severity": "error", **error.error}]
    return []


def _deletion(remote: RemoteCluster, present: PresentConnector) -> PlannedConnector:
    tasks: dict[str, Any] = {}

    def ask() -> None:
        answer = remote.ask("DELETE", f"{path_of(present.name)}?dry_run=true").content
        tasks.update({"stop": answer["tasks"]["stop"]} if answer["tasks"]["stop"] else {})

    refused = _refusal(remote, ask)
    return PlannedConnector(present.name, "deleted", present.kind, present.version, tasks=tasks, findings=refused)


def carry_out(
    remote: RemoteCluster, plan: SetPlan, wanted: WantedSet, *, no_live_checks: bool
) -> Iterator[tuple[PlannedConnection | PlannedConnector, CliError | None]]:
    """Does what the plan says, step by step, and yields each step with its failure.

    Each change holds only for the version that the plan has seen. One that fails leaves the others to go on, but nothing
    is deleted afterwards.
    """
    bodies = {one.name: one for one in wanted.connectors}
    kept = {one.name: one for one in wanted.connections}
    failed = False
    for step in plan.steps:
        if step.effect == "deleted" and failed:
            continue
        try:
            if isinstance(step, PlannedConnection):
                connections.apply_one(remote, step, kept[step.name], no_live_checks)
            else:
                _step(remote, step, bodies.get(step.name), live_query(no_live_checks))
        except CliError as error:
            failed = True
            yield step, error
        else:
            yield step, None


def _step(remote: RemoteCluster, step: PlannedConnector, wanted: WantedConnector | None, query: str) -> None:
    held = {"If-Match": f'"{step.version}"'}
    if wanted is None:
        try:
            answer = remote.ask("DELETE", path_of(step.name), headers=held)
        except CliError as error:
            if error.error.get("error_code") != GONE:
                raise
            remote.note(f"{step.name}: somebody else has deleted it")
            return
        if left := connector_texts.left_line(answer.headers.get("x-cdc-left", "")):
            remote.note(f"{step.name}: {left}")
    elif step.version is None:
        # By its key the cluster knows the request again when a worker ends between taking and answering it.
        remote.ask("POST", f"/connectors{query}", wanted.body(), {KEY_HEADER: uuid.uuid4().hex})
    else:
        if step.changes:
            answer = remote.ask("PUT", f"{path_of(step.name)}/config{query}", dict(wanted.config), held)
            held = {"If-Match": answer.headers["etag"]} if answer.headers.get("etag") else {}
        if step.labels is not None:
            remote.ask("PUT", _labels_path(step.name), dict(step.labels), held)


def exported_connections(remote: RemoteCluster) -> list[dict[str, Any]]:
    """Returns the connections in the form of a set's file; secrets are masked."""
    return [{"connection": name, "config": one["config"]} for name, one in sorted(present_connections(remote).items())]


def exported(remote: RemoteCluster, names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the connectors in the form of a set's file, all of them or those of these names; secrets are masked."""
    present = present_connectors(remote)
    out = []
    for name in names or sorted(present):
        if name not in present:
            # The cluster's own refusal, with its code.
            remote.get(path_of(name))
        one = present[name]
        body: dict[str, Any] = {"name": name, "config": {k: v for k, v in one.config.items() if k != "name"}}
        out.append({**body, "labels": dict(one.labels)} if one.labels else body)
    return out
