"""`cdcworker verify`: has a sink's warehouse what its source has? Waited for, shown as a report, told by the exit code; what
differs is repaired on request."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import click
from cdcworker.worker.cli.client.remote import RemoteCluster, cluster_options, complete_names, remote_of, segment
from cdcworker.worker.cli.client.repair import SinkRepair
from cdcworker.worker.cli.render.output import CliError, clean, coloured, envelope, of_error

EXIT_EQUAL, EXIT_DIFFERENT, EXIT_IMPOSSIBLE = 0, 1, 3
LOOK_S: Final = 0.5
COLOURS: Final = {"equal": "green", "different": "red", "undecided": "yellow", "impossible": "magenta"}
KINDS: Final = {
    "missing": "missing in the warehouse",
    "extra": "in the warehouse only",
    "different": "different",
    "duplicate": "more than once in the warehouse",
}


@click.command("verify")
@click.argument("sink", shell_complete=complete_names)
@click.option("--source", metavar="NAME", help="The source to compare with; else the one whose prefix the topics have.")
@click.option("--table", "tables", multiple=True, metavar="REGEX", help="Only these schema.table; may be repeated.")
@click.option("--show-keys", is_flag=True, help="Name the keys of differing rows. Keys are row values.")
@click.option("--last", is_flag=True, help="Show the comparison that runs, or the last one; begin none.")
@click.option("--repair", is_flag=True, help="Bring rows that differ from the source, and compare again.")
@click.option("--dry-run", is_flag=True, help="With --repair: show what would be repaired, change nothing.")
@cluster_options
def verify(
    sink: str, source: str | None, tables: tuple[str, ...], show_keys: bool, last: bool, repair: bool, dry_run: bool
) -> None:
    """Compare the warehouse of SINK with its source, both at one position, while changes go on.

    Only rows that stood still are reported: a report is a difference, never a change on its way.

    With --repair the source reads the rows that differ once more, beside the stream: missing and different ones come again,
    and those that the source does not have are deleted. With --dry-run the rows are only counted; with --last as well, those
    of the last comparison for a repair.

    Exit codes: 0 equal, 1 different, 3 it could not be told (also: rows that never stood still).
    """
    if dry_run and not repair:
        raise click.UsageError("--dry-run goes with --repair")
    if repair and last and not dry_run:
        raise click.UsageError("--repair compares anew; --last goes with --repair --dry-run")
    remote = remote_of(click.get_current_context())
    path = f"/v1/connectors/{segment(sink)}/verify"
    query = [*([("source", source)] if source else []), *(("table", table) for table in tables)]
    try:
        if repair:
            code = _repaired(remote, path, query, last=last, dry_run=dry_run, keys=show_keys)
        else:
            found = remote.get(path) if last else _followed(remote, path, query)
            code = _tell(remote, _with_keys(remote, path, found) if show_keys else found, keys=show_keys)
    except CliError as error:
        error.exit_code = EXIT_IMPOSSIBLE if error.exit_code == EXIT_DIFFERENT else error.exit_code  # type: ignore[misc]
        raise
    sys.exit(code)


def _with_keys(remote: RemoteCluster, path: str, found: Any) -> Any:
    return remote.get(f"{path}?keys=true") if found["state"] == "done" else found


def _tell(remote: RemoteCluster, found: Any, *, keys: bool) -> int:
    """Prints a comparison and returns the exit code that it means."""
    code = exit_code(found)
    if remote.as_json:
        text = summary(found)
        click.echo(envelope(remote.command, {"summary": text, **found}, ok=code == EXIT_EQUAL, summary=text))
    else:
        for line in lines(found, colour=coloured(), keys=keys):
            click.echo(line)
    return code


def _repaired(
    remote: RemoteCluster, path: str, query: list[tuple[str, str]], *, last: bool, dry_run: bool, keys: bool
) -> int:
    asked = [*query, ("repair", "true")]
    repair = SinkRepair(remote, path, lambda: _followed(remote, path, asked))
    if last:
        return _tell_plan(remote, repair.plan())
    outcome = repair.compared() if dry_run else repair.run(lambda plan: _announce(remote, plan))
    found = _with_keys(remote, path, outcome.found) if keys else outcome.found
    error = None if dry_run else outcome.error()
    code = exit_code(found)
    if remote.as_json:
        content = {"summary": summary(found), **found, "repair": outcome.to_json()}
        told = error.to_dict() if error else None
        click.echo(envelope(remote.command, content, told, ok=code == EXIT_EQUAL, summary=summary(found)))
        return code
    for line in lines(found, colour=coloured(), keys=keys, lists_rows=keys):
        click.echo(line)
    for line in plan_lines(outcome.plan) if outcome.plan else ():
        click.echo(line)
    if outcome.rows:
        click.echo(f"repaired: {_counted(outcome.rows, 'row')} in {_counted(len(outcome.rounds), 'round')}")
    if error is not None:
        of_error(error, remote.command, as_json=False).show()
    return code


def _announce(remote: RemoteCluster, plan: Mapping[str, Any]) -> None:
    """Says on stderr what is repaired now."""
    for line in plan_lines(plan):
        remote.note(line)


def _tell_plan(remote: RemoteCluster, plan: Mapping[str, Any]) -> int:
    shown = list(plan_lines(plan))
    equal = not plan["tables"]
    if remote.as_json:
        click.echo(envelope(remote.command, dict(plan), ok=equal, summary=shown[-1]))
    else:
        click.echo("\n".join(shown))
    return EXIT_EQUAL if equal else EXIT_DIFFERENT


def plan_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yields what a repair reads and what it leaves: tables and counts, no keys."""
    for table in plan["tables"]:
        counts = [f"{table[kind]:,} {kind}" for kind in ("missing", "different", "extra") if table[kind]]
        if counts:
            more = "" if table["complete"] else "; more is left for the next comparison"
            yield f"to repair: {clean(table['table'])}: {', '.join(counts)}{more}"
        for item in table["refused"]:
            what = f"{_counted(item['rows'], 'row')}: " if item["rows"] else ""
            yield f"not repaired: {clean(table['table'])}: {what}{clean(item['why'])}"
    if not plan["rows"]:
        yield "nothing that can be repaired" if plan["tables"] else "nothing to repair"
        return
    yield f"{_counted(plan['rows'], 'row')} of {clean(plan['source'])} to be read in {_counted(plan['batches'], 'batch')}"


def _followed(remote: RemoteCluster, path: str, query: list[tuple[str, str]]) -> Any:
    """Begun, and waited for. Another one that begins meanwhile takes this one's place in the record."""
    begun = remote.ask("POST", f"{path}?{urlencode(query)}" if query else path).content
    shows, shown = sys.stderr.isatty() and not remote.as_json, ""
    while True:
        found = remote.get(path)
        if found["id"] == begun["id"] and found["state"] != "running":
            break
        if found["id"] != begun["id"] and found["started"] > begun["started"]:
            break
        line = _progress(found["progress"])
        if shows and line != shown:
            click.echo(f"\r\x1b[K{line}", err=True, nl=False)
            shown = line
        time.sleep(LOOK_S)
    if shown:
        click.echo("\r\x1b[K", err=True, nl=False)
    return found


def _progress(progress: Mapping[str, int]) -> str:
    if not progress:
        return "comparing …"
    tables, rows = f"{progress['tables_done']} of {progress['tables']} tables", f"{progress['rows']:,} rows"
    return f"comparing … {tables}, {rows} of about {progress['rows_expected']:,}"


def exit_code(found: Mapping[str, Any]) -> int:
    verdict = (found.get("result") or {}).get("verdict")
    return {"equal": EXIT_EQUAL, "different": EXIT_DIFFERENT}.get(str(verdict), EXIT_IMPOSSIBLE)


def summary(found: Mapping[str, Any]) -> str:
    result, error = found.get("result"), found.get("error")
    if result is None:
        text = f"[{error['code']}] {error['message']}" if error else _progress(found["progress"])
        return clean(text)
    tables, differ = result["tables"], [table for table in result["tables"] if table["verdict"] == "different"]
    verdict = result["verdict"]
    if verdict == "equal":
        return f"equal: {len(tables)} tables at {result['position']}"
    if verdict == "different":
        return f"DIFFERENT: {_what(result, differ)} in {len(differ)} of {len(tables)} tables"
    if verdict != "undecided":
        unfit = sum(table["verdict"] == "impossible" for table in tables)
        return f"not compared: {unfit} of {len(tables)} tables" + (
            "" if unfit == len(tables) else "; the others are equal"
        )
    return f"undecided: {_moved(result['undecided'])}"


def _moved(rows: int) -> str:
    return f"{_counted(rows, 'row')} never stood still" if rows else "too many rows moved for each to be looked at"


def _what(result: Mapping[str, Any], differ: Sequence[Mapping[str, Any]]) -> str:
    """Tells what differs, largest first; a table that is missing has no rows to count."""
    columns = sum(len(table.get("missing_columns", ())) for table in differ)
    parts = [_counted(result["differences"], "row")] if result["differences"] else []
    parts += [f"{_counted(columns, 'column')} missing"] if columns else []
    return ", ".join(parts) or "everything"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "es" if what.endswith("ch") else "s")


def lines(found: Mapping[str, Any], *, colour: bool, keys: bool, lists_rows: bool = True) -> Iterator[str]:
    """Yields a comparison as people read it. `lists_rows`: differing rows one by one too."""
    result = found.get("result")
    if result is None:
        yield f"{found['connector']}: {summary(found)}"
        return
    yield f"{found['connector']} compared with {found['source']} at {result['position']}, {result['seconds']:g} s"
    width = max([len(clean(table["table"])) for table in result["tables"]], default=5)
    yield f"\n{'TABLE':<{width}}  {'SOURCE':>12}  {'WAREHOUSE':>12}  VERDICT"
    for table in result["tables"]:
        rows, verdict = table["rows"], table["verdict"]
        shown = click.style(verdict, fg=COLOURS[verdict]) if colour else verdict
        yield f"{clean(table['table']):<{width}}  {rows['source']:>12,}  {rows['warehouse']:>12,}  {shown}"
        for line in _details(table if lists_rows else {**table, "found": ()}, keys):
            yield f"{'':<{width}}  {clean(line)}"
    for note in result["notes"]:
        yield f"\nnote: {clean(note)}"
    yield f"\n{summary(found)}"


def _details(table: Mapping[str, Any], keys: bool) -> Iterator[str]:
    if table["reason"]:
        yield table["reason"]
    for kind, count in table["differences"].items():
        if count:
            yield f"{_counted(count, 'row')} {KINDS[kind]}"
    if table.get("missing_columns"):
        yield "columns missing in the warehouse: " + ", ".join(table["missing_columns"])
    for item in table["found"]:
        values = item.get("values")
        name = (
            ", ".join("NULL" if value is None else value for value in values) if keys and values else f"#{item['key']}"
        )
        yield f"  {item['kind']:<10} {name}" + (f"  ({', '.join(item['columns'])})" if item["columns"] else "")
    if not table["complete"]:
        yield "so different that not every row was looked at"
    if table["undecided"]:
        yield f"{_counted(table['undecided'], 'row')} changed all the time: undecided"
    for item in table["left_out"]:
        if item["column"] in table.get("missing_columns", ()):
            continue
        yield f"not compared: column {item['column']}: {item['why']}"
