"""A set of connectors and a cluster: what the cluster has, the plan between the two, and the plan carried out."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from cdcworker.worker.cli.client.connector_requests import (
    live_query,
    path_of,
    previewed,
    validated,
    with_secrets_compared,
)
from cdcworker.worker.cli.client.remote import KEY_HEADER, RemoteCluster
from cdcworker.worker.cli.connector_sets.files import WantedConnector
from cdcworker.worker.cli.connector_sets.plan import (
    Effect,
    PlannedConnector,
    PresentConnector,
    SetPlan,
    in_order,
    new_labels,
    reads,
    superfluous,
)
from cdcworker.worker.cli.render import connector_texts
from cdcworker.worker.cli.render.output import EXIT_ENVIRONMENT, CliError


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
    wanted: Sequence[WantedConnector],
    label: tuple[str, str],
    *,
    prune: bool,
    no_live_checks: bool,
) -> SetPlan:
    """Returns what has to happen for the cluster to have the connectors as they are wanted. Nothing is changed."""
    present = present_connectors(remote)
    planned = [_planned(remote, one, present.get(one.name), no_live_checks) for one in wanted]
    if prune:
        planned += [_deletion(remote, one) for one in superfluous(present, wanted, label)]
    return SetPlan(in_order(planned), prune, "=".join(filter(None, label)))


def _planned(
    remote: RemoteCluster, wanted: WantedConnector, present: PresentConnector | None, no_live_checks: bool
) -> PlannedConnector:
    changes = connector_texts.differences(present.config if present is not None else None, wanted.config)
    if present is not None:
        changes = with_secrets_compared(remote, wanted.name, wanted.config, changes)
    labels = new_labels(wanted, present)
    version = present.version if present is not None else None
    if present is not None and not changes:
        effect: Effect = "unchanged" if labels is None else "changed"
        return PlannedConnector(wanted.name, effect, present.kind, version, labels=labels)
    effect = "created" if present is None else "changed"
    findings, preview = _judged(remote, wanted, no_live_checks)
    tasks = preview.get("tasks", {})
    kind = present.kind if present is not None else preview.get("type", "")
    return PlannedConnector(
        wanted.name,
        effect,
        kind,
        version,
        connector_texts.hidden(changes),
        labels,
        {verb: tasks[verb] for verb in ("start", "restart", "stop") if tasks.get(verb)},
        reads(effect, kind, wanted.config, changes),
        findings,
    )


def _judged(
    remote: RemoteCluster, wanted: WantedConnector, no_live_checks: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns what validation finds and what the config would do; a refusal of this one connector is a finding."""
    try:
        report = validated(remote, wanted.config, no_live_checks=no_live_checks)
        found = list(report["findings"])
        return found, {} if report["error_count"] else previewed(remote, wanted.name, wanted.config)
    except CliError as error:
        if error.exit_code == EXIT_ENVIRONMENT:
            raise
        return [{"severity": "error", **error.error}], {}


def _deletion(remote: RemoteCluster, present: PresentConnector) -> PlannedConnector:
    answer = remote.ask("DELETE", f"{path_of(present.name)}?dry_run=true").content
    tasks = {"stop": answer["tasks"]["stop"]} if answer["tasks"]["stop"] else {}
    return PlannedConnector(present.name, "deleted", present.kind, present.version, tasks=tasks)


def carry_out(
    remote: RemoteCluster, plan: SetPlan, wanted: Sequence[WantedConnector], *, no_live_checks: bool
) -> Iterator[tuple[PlannedConnector, CliError | None]]:
    """Does what the plan says, step by step, and yields each step with its failure.

    Each change holds only for the version that the plan has seen. One that fails leaves the others to go on, but nothing
    is deleted afterwards.
    """
    bodies = {one.name: one for one in wanted}
    failed = False
    for step in plan.steps:
        if step.effect == "deleted" and failed:
            continue
        try:
            _step(remote, step, bodies.get(step.name), live_query(no_live_checks))
        except CliError as error:
            failed = True
            yield step, error
        else:
            yield step, None


def _step(remote: RemoteCluster, step: PlannedConnector, wanted: WantedConnector | None, query: str) -> None:
    held = {"If-Match": f'"{step.version}"'}
    if wanted is None:
        answer = remote.ask("DELETE", path_of(step.name), headers=held)
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
            remote.ask("PUT", f"/v1{path_of(step.name)}/labels", dict(step.labels), held)


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
