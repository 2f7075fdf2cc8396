"""What is done when a connector moves, step by step; a step that fails says what stands where, and the way back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.cli.client.connector_requests import path_of, validated
from cdcworker.worker.cli.client.remote import KEY_HEADER, WARNING_HEADER, RemoteCluster
from cdcworker.worker.cli.render.output import CliError, of_error
from cdcworker.worker.cli.takeover.debezium_config import PREFIX
from cdcworker.worker.cli.takeover.former_connector import FormerConnector, of_topics, only
from cdcworker.worker.cli.takeover.kafka_connect import CONNECT_REFUSED, KafkaConnect
from cdcworker.worker.cli.takeover.taken_config import TakenConfig

NOT_RUNNING: Final = declare(
    "cli.takeover_not_running",
    "environment",
    "The connector was taken over, and does not run",
    "`cdcworker connector describe NAME` says why; it goes on from the former one's position once that is repaired.",
)
IN_USE: Final = "postgres.slot_in_use"
FREE_S: Final = 60.0
RUN_S: Final = 90.0
_POLL_S: Final = 0.5


@dataclass
class Progress:
    """What has been done, and how it is undone; told as it happens."""

    tell: Callable[[str], None]
    done: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    way_back: str = ""

    def add(self, line: str) -> None:
        self.done.append(line)
        self.tell(line)


def rehearsed(remote: RemoteCluster, former: FormerConnector, taken: TakenConfig) -> dict[str, Any]:
    """Returns what taking the connector over would do, and what is in the way. Changes nothing."""
    former.require_stoppable()
    report = validated(remote, taken.config, no_live_checks=False)
    # The slot is read until the former connector is stopped.
    findings = [item for item in report["findings"] if item.get("code") != IN_USE]
    offsets = _stored(former, taken)
    return {
        "connector": former.name,
        "name": taken.config["name"],
        "topic_prefix": taken.config.get(PREFIX, ""),
        "origin": taken.origin,
        "partition": dict(offsets[0].get("partition") or {}) if taken.kind == "source" else {},
        "partitions": len(offsets),
        "keys": [{"key": one.key, "effect": one.effect, "text": one.text} for one in taken.findings],
        "findings": findings,
        "refused": len(taken.refused) + sum(item["severity"] == "error" for item in findings),
    }


def take_over(
    remote: RemoteCluster, former: FormerConnector, taken: TakenConfig, progress: Progress, *, stopped: bool
) -> None:
    """Stops the former connector, creates ours at its offset and starts it. CliError says what stands where."""
    name = taken.config["name"]
    with _standing(remote, progress):
        former.stop()
        progress.way_back = former.way_back
        progress.add(f"{former.name} of {taken.origin} stands")
        offsets = _stored(former, taken)
    if taken.kind == "source":
        offsets = [{"partition": {"server": taken.config[PREFIX]}, "offset": offsets[0]["offset"]}]
    body = {"name": name, "config": dict(taken.config), "initial_state": "STOPPED", "initial_offsets": offsets}
    with _standing(remote, progress):
        answer = _created(remote, body)
        progress.notes += [warning] if (warning := answer.headers.get(WARNING_HEADER, "")) else []
        progress.add(f"{name} is created, stopped, with the position of {taken.origin}")
        progress.way_back = f"Delete {name} here. {former.way_back}"
    if stopped:
        return
    with _standing(remote, progress):
        remote.ask("PUT", f"{path_of(name)}/resume")
        _wait_running(remote, name)
        progress.add(f"{name} runs")


def _stored(former: FormerConnector, taken: TakenConfig) -> list[Mapping[str, Any]]:
    """Returns the one offset of a source, or those of a sink's topics. CdcError where there is none."""
    offsets = former.stored_offsets()
    return [only(offsets)] if taken.kind == "source" else of_topics(offsets)


def give_back(remote: RemoteCluster, connect: KafkaConnect, names: tuple[str, str], progress: Progress) -> None:
    """Stops our connector, writes its position for Debezium's connector, which stands, and starts that one."""
    own, former = names
    with _standing(remote, progress):
        state = connect.state(former)
        if state != "STOPPED":
            raise CdcError(CONNECT_REFUSED, f"connector {former} is {state} in Kafka Connect: stop it first")
        remote.ask("PUT", f"{path_of(own)}/stop")
        progress.way_back = f"Start ours again with `cdcworker connector resume {own}`"
        found = exported(remote, own)
        progress.notes += found["notes"]
        progress.add(f"{own} stands")
        theirs = {"server": connect.config(former).get(PREFIX, "")}
        connect.write_offsets(former, [{"partition": theirs, "offset": found["offsets"][0]["offset"]}])
        progress.add(f"{former} of Debezium has the position")
        connect.resume(former)
        progress.way_back = f"Stop {former} in Kafka Connect, and take it over again with `cdcworker import debezium`"
        connect.wait_running(former)
        progress.add(f"{former} of Debezium runs")


def exported(remote: RemoteCluster, name: str) -> dict[str, Any]:
    """Returns a stopped connector's position as Debezium's offsets, with notes."""
    return dict(remote.get(f"{path_of(name)}/offsets?form=debezium"))


def _created(remote: RemoteCluster, body: Mapping[str, Any]) -> Any:
    """Creates the connector; a slot that the former reader has not let go yet is waited for."""
    deadline = time.monotonic() + FREE_S
    while True:
        try:
            return remote.ask("POST", "/connectors?validate=false", dict(body), {KEY_HEADER: uuid.uuid4().hex})
        except CliError as error:
            if IN_USE not in error.message or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def _wait_running(remote: RemoteCluster, name: str) -> None:
    deadline = time.monotonic() + RUN_S
    while True:
        tasks = remote.get(f"{path_of(name)}/status")["tasks"]
        states = {task["state"] for task in tasks}
        if states == {"RUNNING"}:
            return
        if "FAILED" in states or time.monotonic() > deadline:
            why = next((task["trace"] for task in tasks if task.get("trace")), "")
            text = f"{name} does not run: {', '.join(sorted(states)) or 'it has no task'}. {why.partition(chr(10))[0]}"
            raise CdcError(NOT_RUNNING, text.strip())
        time.sleep(_POLL_S)


@contextmanager
def _standing(remote: RemoteCluster, progress: Progress) -> Iterator[None]:
    """Adds to an error what has been done and the way back."""
    try:
        yield
    except CdcError as error:
        raise _told(of_error(error, remote.command, as_json=remote.as_json), progress) from error
    except CliError as error:
        raise _told(error, progress) from error


def _told(error: CliError, progress: Progress) -> CliError:
    done = "; ".join(progress.done) or "nothing was changed"
    steps = [text.rstrip(".") for text in (error.error.get("suggestion"), progress.way_back) if text]
    content = {**error.error, "message": f"{error.message} (so far: {done})", "suggestion": ". ".join(steps) or None}
    return CliError(error.command, content, error.exit_code, as_json=error.as_json)
