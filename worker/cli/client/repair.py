"""Repairs of a sink: compared, repaired batch by batch, and compared again until nothing differs or nothing moves on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from cdcworker.connectors.verify.errors import BUSY, NO_COMPARISON, REPAIR_BUSY, STALLED, UNREPAIRED
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.cli.client.remote import RemoteCluster, segment
from cdcworker.worker.cli.render.output import CliError, of_error

LOOK_S: Final = 0.5
ROUNDS_MAX: Final = 20
"""Comparisons with a repair behind each; one takes up to ten thousand rows of a table."""
STALLED_S: Final = 300.0
"""How long a repair may wait for the next rows of its source."""
BUSY_S: Final = 600.0
ENDED: Final = ("COMPLETED", "CANCELLED", "FAILED")
Json = dict[str, Any]


@dataclass(slots=True)
class RepairOutcome:
    """The last comparison, what was to be repaired after it, and how many rows were repaired before."""

    found: Json
    plan: Json | None = None
    rows: int = 0
    rounds: list[Json] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return str((self.found.get("result") or {}).get("verdict"))

    def error(self) -> CdcError | None:
        """Returns what is wrong with the repair; None: nothing differs, or the comparison says by itself what keeps it."""
        if self.verdict != "different":
            return None
        tables = sum(table["verdict"] == "different" for table in self.found["result"]["tables"])
        left = f"{self.found['result']['differences']:,} differing rows are left in {tables} of the tables"
        return CdcError(UNREPAIRED, f"{left}, {self.rows:,} rows were repaired")

    def to_json(self) -> Json:
        return {"rows": self.rows, "rounds": self.rounds, "left": self.plan}


class SinkRepair:
    """The repair of one sink. `compare` begins a comparison for a repair, waits for its end and returns it."""

    def __init__(
        self, remote: RemoteCluster, path: str, compare: Callable[[], Json], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._remote = remote
        self._path = path
        self._compare = compare
        self._clock = clock

    def plan(self, comparison: str = "") -> Json:
        """Returns what would be repaired after a comparison, or after the last one; nothing is changed."""
        chosen = f"&comparison={segment(comparison)}" if comparison else ""
        found: Json = self._remote.ask("POST", f"{self._path}/repair?dry_run=true{chosen}").content
        return found

    def compared(self) -> RepairOutcome:
        """Returns a new comparison and what would be repaired after it. One of somebody else is waited for."""
        until = self._clock() + BUSY_S
        while True:
            try:
                outcome = RepairOutcome(self._compare())
                if outcome.verdict == "different":
                    outcome.plan = self.plan(str(outcome.found["id"]))
                return outcome
            except CliError as error:
                if error.error.get("code") not in (BUSY, NO_COMPARISON) or self._clock() > until:
                    raise
                time.sleep(LOOK_S)

    def run(self, tell: Callable[[Json], None]) -> RepairOutcome:
        """Repairs until nothing differs, or until a repair leaves as much as was there before it."""
        rows, rounds, last = 0, list[Json](), None
        while True:
            outcome = self.compared()
            outcome.rows, outcome.rounds = rows, rounds
            plan = outcome.plan
            if plan is None or not plan["rows"] or len(rounds) >= ROUNDS_MAX or not moves_on(last, plan):
                return outcome
            tell(plan)
            brought = list(self._batches(plan))
            rows += sum(brought)
            self._remote.note(f"{sum(brought):,} of {plan['rows']:,} rows were read and handed on; comparing again")
            rounds.append(plan)
            last = plan if len(brought) == plan["batches"] else None

    def _batches(self, plan: Mapping[str, Any]) -> Iterator[int]:
        """Repairs one batch after the other and yields how many rows each has brought. It ends early where the leader keeps
        another comparison by now, as one by schedule."""
        for number in range(plan["batches"]):
            try:
                yield self._repair(plan, number)
            except CliError as error:
                if error.error.get("code") != NO_COMPARISON:
                    raise
                return

    def _repair(self, plan: Mapping[str, Any], number: int) -> int:
        begun = self._begun(f"{self._path}/repair?comparison={segment(plan['comparison'])}&batch={number}")
        place = f"/v1/connectors/{segment(begun['source'])}/snapshots/{segment(begun['snapshot'])}"
        seen, since = None, self._clock()
        while True:
            found = self._remote.get(place)
            if found["state"] in ENDED:
                break
            if (now := (found["state"], found["rows"])) != seen:
                seen, since = now, self._clock()
            if self._clock() - since > STALLED_S:
                waits = f", waits for {found['waits_for']}" if found["waits_for"] else ""
                self._fail(f"the snapshot {found['id']} of {begun['source']} is {found['state']}{waits}")
            time.sleep(LOOK_S)
        if found["state"] != "COMPLETED":
            self._not_completed(begun["source"], found)
        return int(found["rows"] or 0)

    def _begun(self, asked: str) -> Json:
        """Begins a batch, once the source has ended a repair of somebody else."""
        until = self._clock() + BUSY_S
        while True:
            try:
                found: Json = self._remote.ask("POST", asked).content
                return found
            except CliError as error:
                if error.error.get("code") != REPAIR_BUSY or self._clock() > until:
                    raise
                time.sleep(LOOK_S)

    def _not_completed(self, source: str, found: Mapping[str, Any]) -> NoReturn:
        error = found.get("error") or {}
        if error.get("code"):
            raise self._remote.error({"suggestion": None, **error}, 1)
        self._fail(f"the snapshot {found['id']} of {source} is {found['state']}")

    def _fail(self, text: str) -> NoReturn:
        raise of_error(CdcError(STALLED, text), self._remote.command, as_json=self._remote.as_json)


def moves_on(last: Mapping[str, Any] | None, plan: Mapping[str, Any]) -> bool:
    """Returns whether another repair is of use: after the `last` one, which was carried out whole, fewer rows are left, or it
    had no room for all. None: there is no such."""
    if last is None or not all(table["complete"] for table in last["tables"]):
        return True
    return bool(plan["rows"] < last["rows"])
