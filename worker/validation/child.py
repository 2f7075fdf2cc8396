"""The child that runs a connector's live checks: config and provider rules as JSON on stdin, findings as JSON lines on stdout."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final, TextIO

from cdcworker.connectors.api.abilities import ChecksFiles
from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.registry.names import plugins
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.children.answer import read_question
from cdcworker.worker.config.file_roots import file_roots
from cdcworker.worker.logs.redaction import clean
from cdcworker.worker.validation.connector_of_config import connector_of
from cdcworker.worker.validation.validate import redacted

NEEDED: Final = (
    # Imported late by what a check does in its first moments.
    "encodings.idna",
    "importlib.metadata",
)

CRASHED = declare(
    "check.crashed", "internal", "A live check failed itself", "Report it; the connector may work nevertheless."
)


def preload() -> None:
    """Imports what checks need. A connector that cannot be imported says so in its own check."""
    for name in NEEDED:
        importlib.import_module(name)
    for plugin in plugins():
        with contextlib.suppress(Exception):
            plugin.load()
            for name in plugin.checks:
                importlib.import_module(name)


def main() -> int:
    with read_question() as (question, out):
        for finding in findings(question["config"], question.get("providers", {})):
            _say(out, asdict(finding))
        _say(out, {"done": True})
    return 0


def findings(config: Mapping[str, str], providers: Mapping[str, str]) -> Iterable[CheckFinding]:
    """Each finding as soon as it is there: what came before the time limit counts."""
    try:
        secrets: list[str] = []
        connector = connector_of(config, providers, secrets)
        if isinstance(connector, ChecksFiles):
            connector.check_files(file_roots(providers))
        for finding in connector.check():
            yield _clean(redacted(finding, secrets))
    except CdcError as error:
        place = error.where.get("key", "connector.class")
        yield _clean(CheckFinding(str(place), "error", error.code, error.message, error.hint))
    except Exception as error:  # noqa: BLE001 - the edge of the process; the text may hold secrets, the type does not
        yield CheckFinding("", "note", CRASHED, f"A live check failed with {type(error).__name__}")


def _clean(finding: CheckFinding) -> CheckFinding:
    """Returns the finding without the values that references led to, whichever key they stand in."""
    return replace(finding, message=clean(finding.message), hint=clean(finding.hint))


def _say(out: TextIO, item: dict[str, Any]) -> None:
    out.write(json.dumps(item, separators=(",", ":")) + "\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
