"""The doctor: a connector's surroundings and this machine, examined; what was found in one form, and what mends it."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cdcworker.connectors import registry
from cdcworker.connectors.checkup import ADVICE, Check, Examined, Fix, Result, hint_of
from cdcworker.connectors.config import MASK
from cdcworker.schemas.errors import CODES, CdcError
from cdcworker.worker.references import resolve
from cdcworker.worker.validate import MASKED_VALUE, telling

MARKS = {"ok": "ok", "note": "note", "warning": "warning", "error": "error", "unknown": "unknown"}
EXIT_FINE, EXIT_BLOCKED, EXIT_UNREACHABLE = 0, 1, 3


@dataclass(frozen=True)
class Target:
    """A connector that is examined: its config with secrets resolved, and what is never shown of it."""

    name: str
    config: Mapping[str, str]
    secrets: tuple[str, ...]
    connector: Any
    positions: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """What its tasks have stored, as far as that is known."""

    def examine(self, *, deep: bool) -> Iterator[Examined]:
        """Its own table of checks; a connector without one is asked for the findings of validation."""
        own = getattr(self.connector, "examine", None)
        found: Iterable[Examined] = own(self.positions, deep=deep) if own else _findings(self.connector)
        for item in found:
            yield replace(item, result=self.redacted(item.result))

    def redacted(self, result: Result) -> Result:
        fix = result.fix
        if fix is not None:
            fix = replace(fix, statements=tuple(map(self._hidden, fix.statements)), steps=self._hidden(fix.steps))
        measured, message, hint = map(self._hidden, (result.measured, result.message, result.hint))
        return replace(result, measured=measured, message=message, hint=hint, fix=fix)

    def mend(self, fix: Fix, administrator: str | None) -> None:
        self.connector.mend(fix, administrator)

    def _hidden(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return text


def target(
    name: str,
    config: Mapping[str, Any],
    providers: Mapping[str, str] | None = None,
    offsets: Sequence[Mapping[str, Any]] = (),
) -> Target:
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
    return Target(name, resolved, tuple(telling(resolved, kind.config_def.secrets)), kind(resolved), positions)


def _findings(connector: Any) -> Iterator[Examined]:
    check = Check("connector.validate", "What validation says of it before it starts.", lambda _: ())
    asked = getattr(connector, "check", None)
    found = list(asked()) if asked is not None else []
    for item in found:
        result = Result(item.severity, "", item.message, item.code, item.key, item.hint)
        yield Examined(check, result, 0.0)
    if not found:
        text = "nothing to find fault with" if asked is not None else "this connector has no checks of its outside"
        yield Examined(check, Result("ok", text), 0.0)


def from_dsn(text: str) -> dict[str, str]:
    """libpq's connection string, either form, as the config of a source that reads every table."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(text.strip()).items() if value is not None}
    except psycopg.Error:
        # The message repeats the string, password included.
        raise CdcError("config.invalid", "the connection string cannot be read", hint="postgresql://…") from None
    names = {"host": "hostname", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
    names |= {name: name for name in ("sslmode", "sslcert", "sslkey", "sslpassword", "sslrootcert")}
    config = {f"database.{names[key]}": value for key, value in parts.items() if key in names}
    user = parts.get("user", "postgres")
    basis = {"database.hostname": "localhost", "database.user": user, "database.dbname": parts.get("dbname", user)}
    return {"connector.class": "postgres", "topic.prefix": "doctor", **basis, **config}


def chosen(found: Iterable[Examined], patterns: Sequence[str]) -> Iterator[Examined]:
    for item in found:
        names = (item.check.name, item.check.group)
        if not patterns or any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns):
            yield item


def row(item: Examined) -> dict[str, Any]:
    """A finding in the form of the reference, with what was measured."""
    result = item.result
    fine = result.status == "ok"
    key = result.key if fine else place_of(item.check.group)(result.code, result.key)
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


def place_of(group: str) -> Callable[[str, str], str]:
    """Where an error of a source lies; findings of a machine have no place in a config."""
    if group in ("stack", "kafka", "connector"):
        return lambda _, key: key
    from cdcworker.connectors.postgres.check import key_of

    return key_of


def of_row(found: Mapping[str, Any]) -> Examined:
    """What `row` has made, as a worker tells it."""
    key = str(found.get("configPath") or "").removeprefix("/config/").replace("~1", "/").replace("~0", "~")
    fix = found.get("fix")
    mend = Fix(tuple(fix["value"]), fix["steps"] or "", bool(fix["safe"])) if fix else None
    code = str(found["code"] or ADVICE)
    hint = "" if mend else str(found.get("suggestion") or "")
    status, measured, message = found["severity"], str(found["measured"]), str(found["message"])
    result = Result(status, measured, message, code if code in CODES else ADVICE, key, hint, mend)
    return Examined(Check(str(found["check"]), str(found["why"]), lambda _: ()), result, found["took_ms"] / 1000)


def fix_json(fix: Fix) -> dict[str, Any]:
    return {"op": "sql", "value": list(fix.statements), "steps": fix.steps or None, "safe": fix.safe}


def exit_code(found: Sequence[Examined]) -> int:
    """1 when something blocks; 3 when that is that the way there does not work."""
    errors = [item for item in found if item.result.status == "error"]
    for item in errors:
        if item.check.group in ("reach", "kafka") and CODES[item.result.code].kind in ("transient", "environment"):
            return EXIT_UNREACHABLE
    return EXIT_BLOCKED if errors else EXIT_FINE


def summary(found: Sequence[Examined]) -> str:
    counts = {status: sum(item.result.status == status for item in found) for status in MARKS}
    parts = [f"{number} {status}" for status, number in counts.items() if number]
    verdict = "something blocks" if counts["error"] else "nothing blocks"
    return f"{verdict}: {', '.join(parts) or 'no checks'}"


def safe_fixes(found: Iterable[Examined]) -> list[Examined]:
    """What may be run without harm; each statement once."""
    out, seen = [], set()
    for item in found:
        fix = item.result.fix
        if fix is not None and fix.safe and fix.statements and fix.statements not in seen:
            seen.add(fix.statements)
            out.append(item)
    return out
