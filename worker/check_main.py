"""The child that runs a connector's live checks: config and provider rules as JSON on stdin, findings as JSON lines on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, TextIO

from cdcworker.connectors.api import Finding
from cdcworker.connectors.registry import lookup
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.answering import asked
from cdcworker.worker.files import file_roots
from cdcworker.worker.references import resolve
from cdcworker.worker.security.redact import clean
from cdcworker.worker.validate import redacted, telling

CRASHED = declare(
    "check.crashed", "internal", "A live check failed itself", "Report it; the connector may work nevertheless."
)


def main() -> int:
    with asked() as (question, out):
        for finding in findings(question["config"], question.get("providers", {})):
            _say(out, asdict(finding))
        _say(out, {"done": True})
    return 0


def findings(config: Mapping[str, str], providers: Mapping[str, str]) -> Iterable[Finding]:
    """Each finding as soon as it is there: what came before the time limit counts."""
    try:
        plugin = lookup(config.get("connector.class", ""))
        connector_class = plugin.load()
        resolved = resolve(config, providers)
        secrets = telling(resolved, connector_class.config_def.secrets)
        connector = connector_class(resolved)
        if hasattr(connector, "check_files"):
            connector.check_files(file_roots(providers))
        check = getattr(connector, "check", None)
        for finding in check() if check is not None else ():
            yield _clean(redacted(finding, secrets))
    except CdcError as error:
        place = error.where.get("key", "connector.class")
        yield _clean(Finding(str(place), "error", error.code, error.message, error.hint))
    except Exception as error:  # noqa: BLE001 - the edge of the process; the text may hold secrets, the type does not
        yield Finding("", "note", CRASHED, f"A live check failed with {type(error).__name__}")


def _clean(finding: Finding) -> Finding:
    """Without what references led to, in whichever key they stand."""
    return replace(finding, message=clean(finding.message), hint=clean(finding.hint))


def _say(out: TextIO, item: dict[str, Any]) -> None:
    out.write(json.dumps(item, separators=(",", ":")) + "\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
