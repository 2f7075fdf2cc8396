"""Checks of a target of records in this process: what `write` has taken is there when it returns, in its order, and may come again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from cdcworker.connectors.api.opened import Closes
from cdcworker.connectors.api.record_target import RecordBatch, RecordTarget, TargetPlace, TargetRecord
from cdcworker.connectors.kit.connector_classes import KitSink
from cdcworker.connectors.record_sink.connector import RecordSink
from cdcworker.connectors.transforms.data import ConnectSchema, Header, struct
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.conformance.findings import Check, limited, require
from cdcworker.worker.conformance.harness import GoesAway, SinkHarness
from cdcworker.worker.conformance.source_checks import STRANGE, check_config, check_keys

_TEXT: Final = ConnectSchema("string", optional=True)
_ROW: Final = struct(("id", ConnectSchema("int64")), ("text", _TEXT), name="kit.Row")
_KEY: Final = struct(("id", ConnectSchema("int64")), name="kit.Key")


class SinkChecks:
    """Checks of one connector class with its outside. `config` is whole."""

    def __init__(
        self,
        connector_class: type[RecordSink],
        harness: SinkHarness,
        config: Mapping[str, str],
        roots: Sequence[str] = (),
    ) -> None:
        """`roots` are folders in which the target may write files."""
        self._class = connector_class
        self._harness = harness
        self._config = dict(config)
        self._roots = tuple(roots)
        self._next = 0

    def all(self) -> Sequence[Check]:
        return (
            Check("a config is judged, and its keys say what they are", self.config),
            Check("what was written is there when write returns, in its order", self.durable),
            Check("a batch may come again", self.again),
            Check("tombstones, texts of any kind and headers are taken", self.strange),
            Check("a target that is away is told as such, and takes the batch later", self.outage),
        )

    @contextmanager
    def opened(self) -> Iterator[RecordTarget]:
        sink = self._class(self._config)
        parsed = self._class.config_def.parse(self._config)
        target = sink.open_target(TargetPlace(parsed, self._config["connector.class"], self._roots))
        try:
            yield target
        finally:
            if isinstance(target, Closes):
                target.close()

    def records(self, count: int, texts: Sequence[str | None] = ("text",)) -> list[TargetRecord]:
        """Returns records with ids that were not there before; None among the texts is a tombstone."""
        out = []
        for _ in range(count):
            n, self._next = self._next, self._next + 1
            text = texts[n % len(texts)]
            value: dict[str, Any] | None = None if text is None else {"id": n, "text": text}
            headers = (Header("h", None, b"\x00\xff"),)
            out.append(
                TargetRecord(f"kit-0-{n}", "kit.rows", 0, n, 1_700_000_000_000, _KEY, {"id": n}, _ROW, value, headers)
            )
        return out

    def config(self) -> None:
        check_config(self._class.config_def, self._config, self._harness.unfit)
        if issubclass(self._class, KitSink):
            check_keys(self._class.plugin.keys)

    def durable(self) -> None:
        with self.opened() as target:
            for _ in range(3):
                batch = self.records(20)
                limited(partial(target.write, RecordBatch(batch)), "write")
                self._require_taken(batch)

    def again(self) -> None:
        with self.opened() as target:
            batch = self.records(10)
            for records in (batch, batch[3:], batch):
                target.write(RecordBatch(records))
            self._require_taken(batch)

    def strange(self) -> None:
        with self.opened() as target:
            batch = self.records(2 * len(STRANGE) + 2, (*STRANGE, None))
            limited(lambda: target.write(RecordBatch(batch)), "write")
            self._require_taken(batch)

    def outage(self) -> None:
        harness = self._harness
        if not isinstance(harness, GoesAway):
            return
        with self.opened() as target:
            batch = self.records(5)
            harness.stop()
            try:
                limited(lambda: target.write(RecordBatch(batch)), "write to a target that is away")
            except CdcError as error:
                require(error.kind == "transient", f"a target that is away halts the task: {error}")
            else:
                self._require_taken(batch, "write returned while the target was away, and the records are not there")
            finally:
                harness.start()
            target.write(RecordBatch(batch))
            self._require_taken(batch)

    def _require_taken(
        self, batch: Sequence[TargetRecord], problem: str = "write returned, and the target does not have the records"
    ) -> None:
        wanted = [record.id for record in batch]
        ids = set(wanted)
        first = [id for id in dict.fromkeys(self._harness.received()) if id in ids]
        require(set(first) == ids, problem)
        require(first == wanted, "records are in another order than they were written in")
