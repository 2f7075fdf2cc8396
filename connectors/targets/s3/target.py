"""Writes batches of records as files. A file appears whole or not at all, and each record is in one of them.

The files of a batch are staged, then decided by a change of the partition's ledger, then put where readers look. Whoever comes after a
crash finishes what was decided, and what was not decided was never there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.record_target import RecordBatch, TargetPlace, TargetRecord, TargetUnavailable
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.connectors.targets.s3.config import PATH, format_of, place_of, store_of, template_of
from cdcworker.connectors.targets.s3.formats import format_named
from cdcworker.connectors.targets.s3.layout import Folders, name_of
from cdcworker.connectors.targets.s3.ledger import Decided, PartitionLedger
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.stores import object_stores
from cdcworker.schemas import failpoints
from cdcworker.schemas.errors import CdcError

RUNS_MAX: Final = 1_000
"""So many files may begin with the same record: those of topics that were made again, and of offsets that were set back."""
_WHERE: Final = {"key": PATH}


class _File(NamedTuple):
    folder: str
    records: list[TargetRecord]


class FilesTarget:
    """A place in a store. It has taken a batch once all its files are where readers look."""

    def __init__(self, place: TargetPlace) -> None:
        config = place.config
        self._place = place
        self._store: Storage = store_of(config, place.file_roots)
        self._folders = Folders(template_of(config))
        self._is_event = config["file.content"] == "event"
        self._format = format_named(format_of(config), events=self._is_event, compression=config["file.compression"])
        self._ledgers: dict[str, PartitionLedger] = {}
        self._firsts: dict[str, int] = {}
        """The first offset that this owner was given of a partition: what was refused before it does not come again."""
        self._refused: dict[str, list[int]] = {}
        self._is_begun = False

    def write(self, batch: RecordBatch) -> None:
        by_partition: dict[str, list[TargetRecord]] = {}
        for record in batch.records:
            by_partition.setdefault(record.id.rpartition("-")[0], []).append(record)
        with _as_errors():
            if not self._is_begun:
                self._store.begin(_WHERE)
                self._is_begun = True
            for partition, records in by_partition.items():
                try:
                    self._write(partition, records)
                except (CdcError, OSError) as error:
                    # What is known of the ledger may be wrong now, and what was decided not be where readers look.
                    if isinstance(error, OSError) or error.kind != "data":
                        self._ledgers.pop(partition, None)
                    elif len(batch.records) == 1:
                        self._refused.setdefault(partition, []).append(records[0].offset)
                    raise

    def check(self) -> Sequence[CheckFinding]:
        """Asks an object store for a name."""
        return object_stores.probe(place_of(self._place.config))

    def _write(self, partition: str, records: list[TargetRecord]) -> None:
        ledger = self._ledgers.get(partition)
        if ledger is None:
            ledger = self._claimed(partition, records[0].offset)
        state = ledger.state
        if any(record.offset in state.refused for record in records):
            raise CdcError(RECORD_REFUSED, "the record was refused before")
        records = [record for record in records if record.offset >= state.end]
        if not records:
            return
        made = [(file, self._format.content(file.records)) for file in self._files(records)]
        decided = [(self._staged(ledger, file, content), content) for file, content in made]
        if failpoints.active:
            failpoints.hit("files.before_decision")
        ledger.decide(records[-1].offset + 1, [one for one, _ in decided], self._refused.get(partition, ()))
        self._refused.pop(partition, None)
        if failpoints.active:
            failpoints.hit("files.after_decision")
        for one, content in decided:
            self._publish(one, content)
        self._store.remove([one.staged for one, _ in decided])

    def _claimed(self, partition: str, first: int) -> PartitionLedger:
        """Returns the ledger of a partition that is this owner's, with all files that were decided in their places."""
        ledger = PartitionLedger(self._store, self._place.connector or "check", partition, self._place.epoch)
        # A partition that is claimed once more, after an error, may be in the middle of a batch: what the batch began with counts.
        ledger.claim(self._firsts.setdefault(partition, first))
        for one in ledger.state.files:
            with contextlib.suppress(FileNotFoundError):  # it was published, and staged no more
                self._publish(one, self._store.read(one.staged))
        ledger.forget_staged()
        self._ledgers[partition] = ledger
        return ledger

    def _files(self, records: list[TargetRecord]) -> list[_File]:
        """Deals records out to files, in their order."""
        files: dict[tuple[str, Any], _File] = {}
        for record in records:
            if record.value is None and not self._is_event:
                continue
            folder = self._folders.of(record)
            shape = folder, self._format.shape(record)
            found = files.get(shape)
            if found is None:
                found = files[shape] = _File(folder, [])
            found.records.append(record)
        return list(files.values())

    def _staged(self, ledger: PartitionLedger, file: _File, content: bytes) -> Decided:
        staged = ledger.stage(content)
        # A name that is too long for a file system is told by a folder that is there: nothing is decided that cannot be put.
        self._store.make_folder(file.folder)
        for run in range(RUNS_MAX):
            path = f"{file.folder}/{name_of(file.records[0], run, self._format.ending)}"
            if not self._store.exists(path):
                return Decided(path, staged)
        raise CdcError(
            TARGET_REFUSES, "too many files begin with the same record: remove those of former runs", where=_WHERE
        )

    def _publish(self, one: Decided, content: bytes) -> None:
        """Puts a file where readers look. One that is there already is this one, put by a former owner or by a lost request."""
        self._store.make_folder(one.path.rpartition("/")[0])
        try:
            self._store.create(one.path, content)
        except FileExistsError:
            if hashlib.sha256(self._store.read(one.path)).digest() != hashlib.sha256(content).digest():
                text = "somebody else has made a file of the name that the sink has decided on"
                raise CdcError(TARGET_REFUSES, text, where=_WHERE) from None


@contextlib.contextmanager
def _as_errors() -> Iterator[None]:
    """What a folder refuses is tried again: a disk that is full, a server of files that is away."""
    try:
        yield
    except OSError as exc:
        if exc.errno == errno.ENAMETOOLONG:
            text = "the file system takes no names of files as long as the topic's or the folder's"
            raise CdcError(TARGET_REFUSES, text, where=_WHERE) from None
        raise TargetUnavailable(TARGET_UNAVAILABLE, exc.strerror or type(exc).__name__) from None
