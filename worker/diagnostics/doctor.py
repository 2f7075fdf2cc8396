"""The doctor: a connector's surroundings and this machine, examined; what was found in one form, and what mends it."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cdcworker.connectors.api.abilities import Examined, ReadsConnectionStrings
from cdcworker.connectors.checks import ADVICE, CheckResult, DoctorCheck, ExaminedTarget, Repair, hint_of
from cdcworker.connectors.config.definition import MASK
from cdcworker.connectors.registry import names as registry
from cdcworker.schemas.errors import CODES, CdcError
from cdcworker.worker.config.config_providers import resolve
from cdcworker.worker.logs.redaction import clean
from cdcworker.worker.validation.validate import MASKED_VALUE, telling

MARKS = {"ok": "ok", "note": "note", "warning": "warning", "error": "error", "unknown": "unknown"}
EXIT_FINE, EXIT_BLOCKED, EXIT_UNREACHABLE = 0, 1, 3


@dataclass(frozen=True)
class DoctorTarget:
    """A connector that is examined: its config with secrets resolved, and what is never shown of it."""

    name: str
    config: Mapping[str, str]
    secrets: tuple[str, ...]
    connector: Any
    positions: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """What its tasks have stored, as far as that is known."""
    _meant: dict[Repair, Repair] = field(default_factory=dict, init=False)
    """Each repair as it is shown, with the one that is run."""

    def examine(self, *, deep: bool) -> Iterator[ExaminedTarget]:
        """Its own table of checks; a connector without one is asked for the findings of validation."""
        connector = self.connector
        found = (
            connector.examine(self.positions, deep=deep) if isinstance(connector, Examined) else _findings(connector)
        )
        for item in found:
            yield replace(item, result=self.redacted(item.result))

    def redacted(self, result: CheckResult) -> CheckResult:
        fix = result.fix
        if fix is not None:
            meant = fix
            fix = replace(fix, statements=tuple(map(self._hidden, fix.statements)), steps=self._hidden(fix.steps))
            self._meant[fix] = meant
        measured, message, hint = map(self._hidden, (result.measured, result.message, result.hint))
        return replace(result, measured=measured, message=message, hint=hint, fix=fix)

    def without_secrets(self, error: CdcError) -> CdcError:
        """Returns the error without what is never shown."""
        where = {name: self._hidden(value) if isinstance(value, str) else value for name, value in error.where.items()}
        return CdcError(
            error.code, self._hidden(error.message), where=where, hint=self._hidden(error.hint), fix=error.fix
        )

    def repair(self, fix: Repair, administrator: str | None) -> None:
        """Runs a fix's statements; only for a connector that was examined by its own checks, which propose them."""
        assert isinstance(self.connector, Examined)
        self.connector.repair(self._meant.get(fix, fix), administrator)

    def _hidden(self, text: str) -> str:
        """References before secrets: a password that was read by one is shown as the reference."""
        text = clean(text)
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return text


def target(
    name: str,
    config: Mapping[str, Any],
    providers: Mapping[str, str] | None = None,
    offsets: Sequence[Mapping[str, Any]] = (),
) -> DoctorTarget:
    """CdcError when the config is not valid, a reference cannot be resolved here, or a secret is masked. `offsets` as
    Kafka Connect tells them."""
    given = {key: str(value) for key, value in config.items() if value is not None}
    masked = sorted(key for key, value in given.items() if value == MASK)
    if masked:
        hint = (
            "Name where it is with --password-env or --password-file, or ask a worker: GET /v1/connectors/NAME/doctor."
        )
        raise CdcError(MASKED_VALUE, f"{masked[0]} is masked", where={"key": masked[0]}, hint=hint)
    kind = registry.lookup(given.get("connector.class", "")).load()
    resolved = resolve(given, providers or {})
    kind.config_def.parse(resolved)
    positions = {int(one["partition"].get("task", 0)): one["offset"] for one in offsets if one.get("offset")}
    return DoctorTarget(name, resolved, tuple(telling(resolved, kind.config_def.secrets)), kind(resolved), positions)


def _findings(connector: Any) -> Iterator[ExaminedTarget]:
    check = DoctorCheck("connector.validate", "What validation says of it before it starts.", lambda _: ())
    found = list(connector.check())
    for item in found:
        result = CheckResult(item.severity, "", item.message, item.code, item.key, item.hint)
        yield ExaminedTarget(check, result, 0.0)
    if not found:
        yield ExaminedTarget(check, CheckResult("ok", "nothing to find fault with"), 0.0)


def from_connection_string(text: str) -> Mapping[str, str]:
    """Returns the config of a source that covers the database of this connection string."""
    source: type = registry.of_connection_string(text).load()
    assert issubclass(source, ReadsConnectionStrings)
    return source.config_of(text)


def chosen(found: Iterable[ExaminedTarget], patterns: Sequence[str]) -> Iterator[ExaminedTarget]:
    for item in found:
        names = (item.check.name, item.check.group)
        if not patterns or any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns):
            yield item


def row(item: ExaminedTarget) -> dict[str, Any]:
    """A finding in the form of the reference, with what was measured."""
    result = item.result
    fine = result.status == "ok"
    key = result.key
    return {
        "check": item.check.name,
        "severity": result.status,
        "measured": result.measured,
        "message": result.message,
        "why": item.check.why,
        "code": None if fine else result.code,
        "configPath": f"/config/{key}" if key else None,
        "suggestion": (hint_of(result) or None) if not fine else None,
        "fix": fix_json(result.fix) if result.fix is not None else None,
        "took_ms": round(item.took_s * 1000),
    }


def of_row(found: Mapping[str, Any]) -> ExaminedTarget:
    """Reads what `row` has written, as a worker answers it."""
    key = str(found.get("configPath") or "").removeprefix("/config/").replace("~1", "/").replace("~0", "~")
    fix = found.get("fix")
    mend = Repair(tuple(fix["value"]), fix["steps"] or "", bool(fix["safe"])) if fix else None
    code = str(found["code"] or ADVICE)
    hint = "" if mend else str(found.get("suggestion") or "")
    status, measured, message = found["severity"], str(found["measured"]), str(found["message"])
    result = CheckResult(status, measured, message, code if code in CODES else ADVICE, key, hint, mend)
    return ExaminedTarget(
        DoctorCheck(str(found["check"]), str(found["why"]), lambda _: ()), result, found["took_ms"] / 1000
    )


def fix_json(fix: Repair) -> dict[str, Any]:
    return {"op": "sql", "value": list(fix.statements), "steps": fix.steps or None, "safe": fix.safe}


def exit_code(found: Sequence[ExaminedTarget]) -> int:
    """1 when something blocks; 3 when that is that the way there does not work."""
    errors = [item for item in found if item.result.status == "error"]
    for item in errors:
        if item.check.group in ("reach", "kafka") and CODES[item.result.code].kind in ("transient", "environment"):
            return EXIT_UNREACHABLE
    return EXIT_BLOCKED if errors else EXIT_FINE


def summary(found: Sequence[ExaminedTarget]) -> str:
    counts = {status: sum(item.result.status == status for item in found) for status in MARKS}
    parts = [f"{number} {status}" for status, number in counts.items() if number]
    verdict = "something blocks" if counts["error"] else "nothing blocks"
    return f"{verdict}: {', '.join(parts) or 'no checks'}"


def safe_fixes(found: Iterable[ExaminedTarget]) -> list[ExaminedTarget]:
    """Returns the statements that may be run without harm, each once."""
    out, seen = [], set()
    for item in found:
        fix = item.result.fix
        if fix is not None and fix.safe and fix.statements and fix.statements not in seen:
            seen.add(fix.statements)
            out.append(item)
    return out
