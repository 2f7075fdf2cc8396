"""A shaper over an encoder whose clock stands still, and records read back as the changes that they were made of."""

from __future__ import annotations

from cdcworker.schemas.avro import fingerprint, schema_id, unframe
from cdcworker.schemas.change import Change, Position
from cdcworker.schemas.decode import decode_prepared, prepare
from cdcworker.schemas.encode import UNCHANGED_HEADER, Encoder
from cdcworker.schemas.placeholders import UNAVAILABLE
from cdcworker.schemas.record_layout import RecordLayout

PARTITIONS = 5


class Registry:
    """What a task is lent. Ids go by content."""

    def __init__(self) -> None:
        self.encoder = Encoder("shop", self._register, clock_ns=lambda: 1_700_000_000_000_000_000)
        self._plans: dict[int, tuple] = {}
        """By schema id: the encoder's plan, and the prepared schema."""

    def _register(self, registrations):
        return [schema_id(fingerprint(one.schema)) for one in registrations]

    @property
    def version(self) -> int:
        return self.encoder.version

    @property
    def clock_ns(self):
        return self.encoder.clock_ns

    def tails(self):
        return self.encoder.tails()

    def layout(self, table, position) -> RecordLayout:
        plan = self.encoder.plan(table, position)
        number = unframe(plan.value_frame)[0]
        if number not in self._plans:
            self._plans[number] = plan, prepare(plan.value_schema)
        return RecordLayout(plan, PARTITIONS, 1 << 20, True, UNAVAILABLE)

    def produced(self, items) -> list[tuple]:
        """Topic, value, key, partition and headers of each, whoever has written it."""
        made: list[tuple] = []
        for item in items:
            if isinstance(item, Change):
                for topic, key, value, headers, key_hash in self.encoder.encode([item]):
                    made.append((topic, value, key, key_hash % PARTITIONS if key_hash is not None else 0, headers))
            else:
                made += [(*record[:4], record[-1] if len(record) > 4 else None) for record in item.records]
        return made

    def changes(self, items) -> list[Change]:
        """As the decoder would have handed them on; tombstones are left out."""
        made: list[Change] = []
        for item in items:
            if isinstance(item, Change):
                made.append(item)
            else:
                made += [self._change(record) for record in item.records if record[1] is not None]
        return made

    def _change(self, record) -> Change:
        number, at = unframe(record[1])
        plan, schema = self._plans[number]
        found = decode_prepared(schema, record[1][at:])
        source = found["source"]
        position = Position(source["commit_lsn"], source["tx_index"], source["tx_sub"])
        before, after = (None if found[name] is None else tuple(found[name].values()) for name in ("before", "after"))
        headers = dict(record[-1]) if len(record) > 4 and record[-1] else {}
        unchanged = tuple(map(int, headers[UNCHANGED_HEADER].split(b","))) if UNCHANGED_HEADER in headers else ()
        return Change(found["op"], plan.table, position, source, before, after, unchanged)
