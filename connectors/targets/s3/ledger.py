"""What is decided of a partition, in a file beside the data: up to which offset records are in files, and in which ones the last are.

A change of the ledger is one conditional put, which names what the file held before. So a former owner decides nothing. No two states are
the same: a put that arrives late never finds the state that it was made for.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from cdcworker.connectors.record_sink.errors import SINK_FENCED, TARGET_REFUSES
from cdcworker.connectors.targets.s3.layout import encoded_part
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.schemas.errors import CdcError

HOME: Final = "_cdcworker"
"""A folder that readers of files pass over."""
REFUSED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Decided:
    """A file that belongs to the data. Its content lies at `staged` until it is at `path` too."""

    path: str
    staged: str


@dataclass(frozen=True, slots=True)
class State:
    """What a ledger holds. `end` is the next offset that is in no file; records that were `refused` are before it."""

    epoch: tuple[int, int]
    end: int
    files: tuple[Decided, ...] = ()
    refused: tuple[int, ...] = ()
    token: str = ""
    """Of the change that made it."""


class PartitionLedger:
    """The ledger of one partition of a connector."""

    def __init__(self, store: Storage, connector: str, partition: str, epoch: tuple[int, int]) -> None:
        """`partition`: the id of the topic and the number, of characters that file names have."""
        self._store, self._epoch = store, epoch
        self._folder = f"{HOME}/{encoded_part(connector)}"
        self._path = f"{self._folder}/{partition}.json"
        self._home = f"{self._folder}/{partition}"
        self._state = State(epoch, 0)

    @property
    def state(self) -> State:
        return self._state

    def stage(self, content: bytes) -> str:
        """Returns where content lies now that may be decided on."""
        epoch, attempt = self._epoch
        path = f"{self._home}/{epoch}-{attempt}-{uuid.uuid4().hex}"
        self._store.make_folder(self._home)
        self._store.replace(path, content)
        return path

    def forget_staged(self) -> None:
        """Removes what this owner and former ones have staged, which is decided on no more."""
        names = [name for name in self._store.names(self._home, "") if _owner(name) <= self._epoch]
        self._store.remove([f"{self._home}/{name}" for name in names])

    def claim(self, first: int) -> None:
        """Makes the partition this owner's. `first`: what was refused before it does not come again. CdcError `sink.fenced`."""

        def claimed(found: State | None) -> State:
            if found is None:
                return State(self._epoch, 0)
            if found.epoch > self._epoch:
                raise _fenced()
            return replace(found, epoch=self._epoch, refused=tuple(each for each in found.refused if each >= first))

        self._store.make_folder(self._folder)
        self._change(claimed)

    def decide(self, end: int, files: Sequence[Decided], refused: Sequence[int]) -> None:
        """Notes that records up to an offset are in these files, which are staged. CdcError `sink.fenced`."""
        before = self._state

        def decided(found: State | None) -> State:
            if found is None or found.epoch != self._epoch or found.end != before.end:
                raise _fenced()
            known = tuple(sorted({*found.refused, *refused}))[-REFUSED_MAX:]
            return State(self._epoch, end, tuple(files), known)

        self._change(decided)

    def set_end(self, end: int) -> None:
        """Sets the next offset, as a person asks for it."""

        def moved(found: State | None) -> State | None:
            if found is not None and found.epoch > self._epoch:
                raise _fenced()
            return None if found is None else State(self._epoch, end, found.files)

        self._change(moved)

    def _change(self, change: Callable[[State | None], State | None]) -> None:
        made: list[State | None] = []

        def changed(content: bytes | None) -> bytes | None:
            state = change(None if content is None else _read(content))
            if state is not None:
                state = replace(state, token=uuid.uuid4().hex)
            made.append(state)
            return None if state is None else _written(state)

        with self._store.alone(f"{self._folder}/lock", {}):
            self._store.update(self._path, changed)
        if made and made[-1] is not None:
            self._state = made[-1]


def _owner(name: str) -> tuple[int, int]:
    """Returns the epoch and the attempt of who staged a file."""
    try:
        epoch, attempt, _ = name.split("-")
        return int(epoch), int(attempt)
    except ValueError:
        return (0, 0)


def _written(state: State) -> bytes:
    return json.dumps(asdict(state), separators=(",", ":")).encode()


def _read(content: bytes) -> State:
    try:
        found: dict[str, Any] = json.loads(content)
        epoch, attempt = found["epoch"]
        files = tuple(Decided(one["path"], one["staged"]) for one in found["files"])
        return State((int(epoch), int(attempt)), int(found["end"]), files, tuple(found["refused"]), str(found["token"]))
    except (ValueError, KeyError, TypeError):
        raise CdcError(TARGET_REFUSES, f"a file in {HOME} is none of the sink's") from None


def _fenced() -> CdcError:
    return CdcError(SINK_FENCED, "another owner writes the files of this partition")
