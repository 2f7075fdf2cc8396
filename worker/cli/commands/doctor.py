"""`cdcworker doctor`: examine a source and this machine, say how to mend them, and mend what is safe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.cli.client.remote import (
    cluster_options,
    command_name,
    complete_names,
    remote_of,
    segment,
    wants_json,
)
from cdcworker.worker.cli.client.secret_options import secret_of
from cdcworker.worker.cli.commands.context import tell
from cdcworker.worker.cli.render.output import CliError, TextTable, clean, coloured, envelope, of_error

if TYPE_CHECKING:
    from cdcworker.connectors.checks import ExaminedTarget
    from cdcworker.worker.diagnostics.doctor import DoctorTarget

COLOURS = {"ok": "green", "note": "blue", "warning": "yellow", "error": "red", "unknown": "magenta"}
SIGNS = {"ok": "✓", "note": "·", "warning": "⚠", "error": "✗", "unknown": "?"}
PASSWORD_KEY = "database.password"  # noqa: S105  the name of a key, no secret
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True)
class SecretSources:
    """Where secrets are: never in arguments, which every process list shows."""

    dsn_env: str | None
    dsn_file: Path | None
    password_env: str | None
    password_file: Path | None
    admin_env: str | None
    admin_file: Path | None


@click.command("doctor")
@click.argument("target", required=False, shell_complete=complete_names)
@click.option("--dsn-env", metavar="VARIABLE", help="A connection string of the database in this variable.")
@click.option("--dsn-file", type=FILE, help="A connection string of the database in this file.")
@click.option("--password-env", metavar="VARIABLE", help="database.password is in this variable.")
@click.option("--password-file", type=FILE, help="database.password is in this file.")
@click.option(
    "--admin-dsn-env", metavar="VARIABLE", help="Who --apply connects as: connection string in this variable."
)
@click.option("--admin-dsn-file", type=FILE, help="Who --apply connects as: connection string in this file.")
@click.option(
    "--config", "path", type=FILE, help="worker.properties or worker.yaml: for Kafka, and for what references may name."
)
@click.option("--stack", is_flag=True, help="This machine too. Without a target it is all that is examined.")
@click.option(
    "--check", "patterns", multiple=True, metavar="PATTERN", help="Only these checks or groups; may be repeated."
)
@click.option("--list", "listing", is_flag=True, help="Name the checks and why they matter.")
@click.option("--deep", is_flag=True, help="Also what reads more than catalogs: speed of rows, content of libraries.")
@click.option("--apply", is_flag=True, help="Run the statements that are safe, each after a question.")
@click.option("--yes", is_flag=True, help="With --apply: do not ask.")
@cluster_options
def doctor(
    target: str | None,
    dsn_env: str | None,
    dsn_file: Path | None,
    password_env: str | None,
    password_file: Path | None,
    admin_dsn_env: str | None,
    admin_dsn_file: Path | None,
    path: Path | None,
    stack: bool,
    patterns: tuple[str, ...],
    listing: bool,
    deep: bool,
    apply: bool,
    yes: bool,
) -> None:
    """Examine TARGET (a connector's name, a config file, or - for stdin) or what --dsn-env or --dsn-file names.

    A stored connector is examined by a worker, where its secrets are; by this machine when --apply, --config or one of
    the options for secrets is given. Nothing is changed without --apply. A connection string is never taken as an argument: process lists show those.

    Exit codes: 0 nothing blocks, 1 something does, 2 the target is not valid, 3 it cannot be reached.
    """
    sources = SecretSources(dsn_env, dsn_file, password_env, password_file, admin_dsn_env, admin_dsn_file)
    context = click.get_current_context()
    try:
        if listing:
            _list()
            return
        if target is not None and ("://" in target or "password=" in target):
            raise click.UsageError(
                "a connection string in an argument is seen in process lists: --dsn-env or --dsn-file"
            )
        if apply and target is None and dsn_env is None and dsn_file is None:
            raise click.UsageError("--apply needs a target")
        if apply and not yes and (wants_json(context) or not sys.stdin.isatty()):
            raise click.UsageError("--apply asks before each statement: without a terminal it needs --yes")
        _Examination(context, sources, path, patterns, deep).run(target, stack=stack, apply=apply, yes=yes)
    except CdcError as exc:
        raise of_error(exc, command_name(context), as_json=wants_json(context)) from exc


class _Examination:
    def __init__(
        self, context: click.Context, sources: SecretSources, path: Path | None, patterns: tuple[str, ...], deep: bool
    ) -> None:
        self.context = context
        self.sources = sources
        self.path = path
        self.patterns = patterns
        self.deep = deep
        self.as_json = wants_json(context)
        self._group = ""

    def run(self, name: str | None, *, stack: bool, apply: bool, yes: bool) -> None:
        if name is not None and not apply and self._is_stored(name):
            found = self._shown(self._stack()) if stack else []
            found += self._shown(self._by_worker(name))
            self._end(name, found, [])
            return
        target = self._target(name)
        found = []
        if stack or target is None:
            found += self._shown(self._stack())
        if target is not None:
            found += self._shown(target.examine(deep=self.deep))
        applied: list[dict[str, Any]] = []
        if apply and target is not None:
            applied = self._apply(target, found, yes=yes)
            if any(item["done"] for item in applied):
                self._say("\nagain, after what was applied")
                found = self._shown(target.examine(deep=self.deep))
        self._end(target.name if target else None, found, applied)

    def _is_stored(self, name: str) -> bool:
        """A connector of the cluster, of which nothing is told here that its workers do not know."""
        told = (*vars(self.sources).values(), self.path)
        is_file = name == "-" or name.endswith(".json") or Path(name).is_file()
        return not is_file and all(item is None for item in told)

    def _by_worker(self, name: str) -> Iterator[ExaminedTarget]:
        """Examined where the secrets are."""
        from cdcworker.worker.diagnostics.doctor import of_row

        query = "".join(f"&check={segment(pattern)}" for pattern in self.patterns)
        deep = "true" if self.deep else "false"
        answer = remote_of(self.context).get(f"/v1/connectors/{segment(name)}/doctor?deep={deep}{query}")
        return map(of_row, answer["findings"])

    def _target(self, name: str | None) -> DoctorTarget | None:
        from cdcworker.worker.diagnostics.doctor import from_connection_string, target

        dsn = secret_of(self.sources.dsn_env, self.sources.dsn_file)
        if dsn is not None and name is not None:
            raise click.UsageError("either a target or a connection string")
        offsets: list[Mapping[str, Any]] = []
        if dsn is not None:
            label, config = "connection string", dict(from_connection_string(dsn))
        elif name is None:
            return None
        elif name == "-" or name.endswith(".json") or Path(name).is_file():
            from cdcworker.worker.cli.client.connector_files import read_config

            found, config = read_config(Path(name))
            label = str(found or name)
        else:
            label, config, offsets = self._from_cluster(name)
        password = secret_of(self.sources.password_env, self.sources.password_file)
        if password is not None:
            config[PASSWORD_KEY] = password
        return target(label, config, self._providers(), offsets)

    def _from_cluster(self, name: str) -> tuple[str, dict[str, Any], list[Mapping[str, Any]]]:
        remote = remote_of(self.context)
        config = dict(remote.get(f"/connectors/{segment(name)}/config"))
        try:
            offsets = remote.get(f"/connectors/{segment(name)}/offsets")["offsets"]
        except CliError:
            # Workers that do not tell leave one check without a result.
            offsets = []
        return name, config, offsets

    def _providers(self) -> Mapping[str, str]:
        from cdcworker.worker.config.worker_properties import load

        return load(self.path)[0].providers if self.path is not None else {}

    def _stack(self) -> Iterator[ExaminedTarget]:
        from cdcworker.worker.config.worker_properties import load
        from cdcworker.worker.diagnostics.doctor_machine import examine_stack
        from cdcworker.worker.diagnostics.examined_machine import DoctorMachine

        machine = DoctorMachine(deep=self.deep)
        if self.path is not None or any(
            name in os.environ for name in ("CDC_BOOTSTRAP_SERVERS", "CONNECT_BOOTSTRAP_SERVERS")
        ):
            config, _ = load(self.path)
            machine = DoctorMachine(config.kafka, config.group_id, config.properties, self.deep)
        return examine_stack(machine)

    def _shown(self, found: Iterator[ExaminedTarget]) -> list[ExaminedTarget]:
        """Each result as soon as it is there."""
        from cdcworker.worker.diagnostics.doctor import chosen

        out = []
        for item in chosen(found, self.patterns):
            out.append(item)
            if item.check.group != self._group:
                self._group = item.check.group
                self._say(("\n" if len(out) > 1 else "") + self._group)
            for line in lines(item, colour=coloured()):
                self._say(line)
        self._group = ""
        return out

    def _say(self, line: str) -> None:
        if not self.as_json:
            click.echo(line)

    def _apply(self, target: DoctorTarget, found: list[ExaminedTarget], *, yes: bool) -> list[dict[str, Any]]:
        from cdcworker.worker.diagnostics.doctor import safe_fixes

        administrator = secret_of(self.sources.admin_env, self.sources.admin_file)
        out = []
        for item in safe_fixes(found):
            fix = item.result.fix
            assert fix is not None
            text = "; ".join(fix.statements)
            if not yes and not click.confirm(f"\n{clean(text)}\nRun this?", default=False):
                continue
            entry: dict[str, Any] = {"check": item.check.name, "statements": list(fix.statements), "done": True}
            try:
                target.repair(fix, administrator)
                self._say(f"\napplied: {clean(text)}")
            except CdcError as exc:
                error = target.redacted(item.result.__class__("error", "", exc.message, exc.code)).message
                entry |= {"done": False, "error": {"code": exc.code, "message": error}}
                self._say(f"\nnot applied: {clean(text)}\n  {clean(error)}")
            out.append(entry)
        return out

    def _end(self, target: str | None, found: list[ExaminedTarget], applied: list[dict[str, Any]]) -> None:
        from cdcworker.worker.diagnostics.doctor import exit_code, row, summary

        code, text = exit_code(found), summary(found)
        if self.as_json:
            checks = [row(item) for item in found]
            result = {"summary": text, "target": target, "checks": checks, "applied": applied}
            click.echo(envelope(command_name(self.context), result, ok=code == 0, summary=text))
        else:
            self._say(f"\n{text}")
        sys.exit(code)


def lines(item: ExaminedTarget, *, colour: bool) -> Iterator[str]:
    """One line, and for what is not in order: why it matters, and what mends it."""
    from cdcworker.connectors.checks import hint_of

    result, name = item.result, item.check.name.partition(".")[2]
    mark = SIGNS[result.status] if colour else f"{result.status:<7}"
    mark = click.style(mark, fg=COLOURS[result.status]) if colour else mark
    text = " - ".join(part for part in (result.measured, result.message) if part)
    yield f"  {mark} {name:<16} {clean(text)}".rstrip()
    if result.status in ("ok", "unknown"):
        return
    pad = " " * (5 if colour else 11)
    yield f"{pad}why   {item.check.why}"
    fix = result.fix
    if fix is not None:
        for statement in fix.statements:
            yield f"{pad}mend  {clean(statement)};"
        if fix.steps:
            yield f"{pad}{'      ' if fix.statements else 'mend  '}{clean(fix.steps)}"
        if fix.safe and fix.statements:
            yield f"{pad}      (--apply does this)"
    if result.hint or fix is None:
        hint = hint_of(result)
        if hint:
            yield f"{pad}hint  {clean(hint)}"


def _list() -> None:
    from cdcworker.connectors.api.abilities import Examined
    from cdcworker.connectors.registry.names import plugins
    from cdcworker.worker.diagnostics.doctor_kafka import CHECKS as KAFKA
    from cdcworker.worker.diagnostics.doctor_machine import CHECKS as MACHINE

    # One connector may have several names.
    examined = dict.fromkeys(plugin.load() for plugin in plugins() if plugin.kind == "source")
    own = [check for connector in examined if issubclass(connector, Examined) for check in connector.checks()]
    # Checks of two databases may have one name; each says why it matters there.
    checks = [*own, *MACHINE, *KAFKA]
    rows = [(check.name, "validation" if check.validates and check in own else "", check.why) for check in checks]
    content = [{"check": name, "validates": bool(validates), "why": why} for name, validates, why in rows]
    tell(content, TextTable(("CHECK", "ALSO IN", "WHY"), rows, of="check"))
