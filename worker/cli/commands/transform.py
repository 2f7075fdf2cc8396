"""`cdcworker transform`: what the transforms of a config make of records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.cli.client.remote import command_name, json_option, wants_json
from cdcworker.worker.cli.render.output import EXIT_RUNTIME, envelope, of_error, show

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group("transform")
def transform() -> None:
    """Transforms of records, tried before a connector has them."""


@transform.command("try")
@click.option(
    "--config", type=FILE, required=True, help="The connector's config (JSON), in either form of Kafka Connect."
)
@click.option("--topic", required=True, help="The topic whose records are tried.")
@click.option("--worker-config", type=FILE, help="Properties of a worker of this cluster: how to reach its Kafka.")
@click.option("--records", type=click.IntRange(1, 10_000), default=5, show_default=True, help="How many of them.")
@click.option("--from", "begin", type=click.Choice(["beginning", "end"]), default="end", show_default=True)
@json_option
@click.pass_context
def try_(
    context: click.Context, config: Path, topic: str, worker_config: Path | None, records: int, begin: str
) -> None:
    """Show records of a topic before and after the transforms of FILE. Nothing is written.

    The records are read by this process, with the Kafka login of the worker's properties (or of its variables, such as
    CDC_BOOTSTRAP_SERVERS and CDC_GROUP_ID). Exit code 1 if a record cannot be transformed.
    """
    from cdcworker.coordinator.kafka.internal_topics import TopicNames
    from cdcworker.worker.cli.client.connector_files import read_config
    from cdcworker.worker.config.worker_properties import load
    from cdcworker.worker.diagnostics.transform_trial import TrialRequest, trial

    _, given = read_config(config)
    try:
        worker, _ = load(worker_config)
        schema_topic = TopicNames.of_group(worker.group_id, worker.properties).schemas
        asked = TrialRequest(topic, records, begin == "beginning", worker.kafka, schema_topic)
        shown = []
        for one in trial({key: str(value) for key, value in given.items()}, asked):
            shown.append(one)
            if not wants_json(context):
                show(_text(one))
    except CdcError as error:
        raise of_error(error, command_name(context), as_json=wants_json(context)) from error
    failed = sum("error" in one for one in shown)
    summary = f"{len(shown)} records of {topic}, {failed} of them with an error"
    if wants_json(context):
        click.echo(envelope(command_name(context), {"records": shown}, ok=not failed, summary=summary))
    else:
        show(summary)
    context.exit(EXIT_RUNTIME if failed else 0)


def _text(one: Mapping[str, Any]) -> str:
    lines = [f"{one['partition']}:{one['offset']}", *_side("-", one["before"])]
    if "error" in one:
        lines.append(f"! [{one['error']['code']}] {one['error']['message']}")
    elif one["after"] is None:
        lines.append(f"  left out by {one.get('left_out', 'a transform')}")
    else:
        lines += ["  the same"] if one["after"] == one["before"] else _side("+", one["after"])
        if one["after"]["partition"] != one["before"]["partition"]:
            lines.append(f"+ partition: {json.dumps(one['after']['partition'])}")
    return "\n".join(lines)


def _side(mark: str, record: Mapping[str, Any] | None) -> list[str]:
    if record is None:
        return [f"{mark} cannot be read"]
    members = ((name, record[name]) for name in ("topic", "key", "value", "headers"))
    return [
        f"{mark} {name}: {json.dumps(value, ensure_ascii=False)}" for name, value in members if value not in (None, {})
    ]
