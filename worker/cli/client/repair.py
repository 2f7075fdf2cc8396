"""Repairs of a sink: compared, repaired batch by batch, and compared again until nothing differs or nothing moves on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cdcworker.connectors.verify.errors import BUSY, STALLED, UNREPAIRED
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
        rows = self.found["result"]["differences"]
        tables = sum(table["verdict"] == "different" for table in self.found["result"]["tables"])
        return CdcError(UNREPAIRED, f"{rows} rows differ in {tables} tables after {self.rows} rows were repaired")

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
                found = self._compare()
                break
            except CliError as error:
                if error.error.get("code") != BUSY or self._clock() > until:
                    raise
                time.sleep(LOOK_S)
        outcome = RepairOutcome(found)
        if outcome.verdict == "different":
            outcome.plan = self.plan(str(found["id"]))
        return outcome

    def run(self, tell: Callable[[Json], None]) -> RepairOutcome:
        """Repairs until nothing differs, or until a repair leaves as much as was there before it."""
        rows, rounds = 0, list[Json]()
        while True:
            outcome = self.compared()
            outcome.rows, outcome.rounds = rows, rounds
            plan = outcome.plan
            if plan is None or not plan["rows"] or len(rounds) >= ROUNDS_MAX or not moves_on(rounds, plan):
                return outcome
            tell(plan)
            for number in range(plan["batches"]):
                self._repair(plan, number)
            rows += plan["rows"]
            rounds.append(plan)

    def _repair(self, plan: Mapping[str, Any], number: int) -> None:
        asked = f"{self._path}/repair?comparison={segment(plan['comparison'])}&batch={number}"
        begun = self._remote.ask("POST", asked).content
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

    def _not_completed(self, source: str, found: Mapping[str, Any]) -> None:
        error = found.get("error") or {}
        if error.get("code"):
            raise self._remote.error({"suggestion": None, **error}, 1)
        self._fail(f"the snapshot {found['id']} of {source} is {found['state']}")

    def _fail(self, text: str) -> None:
        raise of_error(CdcError(STALLED, text), self._remote.command, as_json=self._remote.as_json)


def moves_on(rounds: list[Json], plan: Mapping[str, Any]) -> bool:
    """Returns whether the repair before has changed anything: with fewer rows to repair, or with rows that it had no room for."""
    if not rounds or not all(table["complete"] for table in rounds[-1]["tables"]):
        return True
    return bool(plan["rows"] < rounds[-1]["rows"])
