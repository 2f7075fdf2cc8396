"""What dead letters that are sent again must do beside a sink, as tests over a fixture `open_sink(**output)`."""

from __future__ import annotations

from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.connectors.warehouses.dead_letters import INCOMPLETE, ROWLESS, UNPLACED
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas import failpoints

from .. import change_streams
from ..change_streams import ID, NARROW, column, table
from .warehouses import TOPIC, rows

START = ("", -1, -1)
LOG = table(column("n", "int", "integer"), key=())


class Died(BaseException):
    """A process ends here."""


class Sink:
    """A task's writer, and the letters beside it; `mend` lets the records say again what they had said."""

    def __init__(self, **output):
        self.output = OutputForm(**output)
        self.stream = change_streams.Stream(1)
        self.sent, self.bad = 0, {}
        self.letters = self.open_letters()
        self.writer = self.open_writer((1, 0))

    @property
    def shapes(self):
        return EnvelopeSchemas(self.stream.schemas, wait_s_max=0)

    def spoil(self, *numbers, part="value"):
        for number in numbers:
            record = self.stream.records[number]
            self.bad[record["partition"], record["offset"], part] = record[part]
            record[part] = b"broken"

    def batch(self, ledger=None):
        assembler = Assembler(self.shapes, self.output.log, tolerant=True, keeps_versions=self.output.versions)
        found = change_streams.arrow(self.stream.records[self.sent :])
        return assembler.build(found, self.writer.ledger() if ledger is None else ledger, 1)

    def apply(self):
        batch = self.batch()
        self.sent = len(self.stream.records)
        return self.writer.apply(batch)

    def miss_the_first(self):
        """Of two rows only the second is applied; the letter of the first could be read by now."""
        for id in (1, 2):
            self.stream.insert(NARROW, (id, 1, "a", "b"))
        self.spoil(0)
        self.apply()
        self.mend()

    def redrive(self, after=START, **more):
        return self.letters.redrive(self.shapes, "", after, 60, log=self.output.log, **more)

    def killed(self, point):
        def at(name):
            if name == point:
                raise Died

        failpoints.listen(at)
        try:
            self.redrive()
        except Died:
            pass
        else:
            raise AssertionError(f"{point} was not passed")
        finally:
            failpoints.listen(None)
            self.letters = self.open_letters()

    def raced(self, do):
        """Two send letters again: the first one has read them, and `do` is what the second one does until it goes on."""
        first, self.letters = self.letters, self.open_letters()
        kept, some = first._kept, first._kept.some

        def late(*args):
            found, kept.some = some(*args), some
            do()
            return found

        kept.some = late
        return first.redrive(self.shapes, "", START, 60, log=self.output.log)

    def overtaken(self, do):
        """The same, but the first one has seen the table too."""
        first, self.letters = self.letters, self.open_letters()

        def at(name):
            if name == "redrive.before_commit":
                failpoints.listen(None)
                do()

        failpoints.listen(at)
        try:
            return first.redrive(self.shapes, "", START, 60, log=self.output.log)
        finally:
            failpoints.listen(None)

    @property
    def left(self):
        return [(row[2], row[3]) for row in self.letters.listed("", START, 1000)[1]]


class Rows:
    """Of every warehouse."""

    def test_letters_come_back_as_rows_and_are_gone(self, open_sink):
        sink = open_sink()
        for number in range(4):
            sink.stream.insert(NARROW, (number, 1, "a", "b"))
        sink.spoil(1, 2)
        sink.apply()
        assert rows(sink.writer, "id") == [(0,), (3,)]
        first = sink.redrive()
        assert (first.letters, first.failed, first.left) == (0, 2, 2)
        assert set(first.causes) == {("spark.undecodable", "the value has no Confluent frame")}
        sink.mend()
        total, (one, other) = sink.letters.listed("", START, 10)
        offsets = [record["offset"] for record in sink.stream.records]
        assert (total, one[:4], other[2]) == (2, (TOPIC, 0, offsets[1], "spark.undecodable"), offsets[2])
        assert sink.letters.listed(TOPIC, one[:3], 10)[1] == [other]
        done = sink.redrive()
        assert (done.letters, done.rows, done.failed, done.left, done.next) == (2, 2, 0, 0, None)
        assert rows(sink.writer, "id", "n") == [(0, 1), (1, 1), (2, 1), (3, 1)]
        assert sink.redrive().letters == 0

    def test_an_older_change_never_wins_over_a_newer_row_nor_over_a_delete(self, open_sink):
        sink = open_sink()
        for number in (1, 2, 3):
            sink.stream.insert(NARROW, (number, 1, "old", "b"))
        sink.spoil(0, 1)
        sink.stream.update(NARROW, (1, 2, "new", "b"))
        sink.stream.delete(NARROW, (2,))
        sink.apply()
        # Much later: what else would have been forgotten.
        sink.forget()
        sink.stream.insert(NARROW, (4, 1, "later", "b"))
        sink.apply()
        sink.mend()
        done = sink.redrive()
        assert (done.letters, done.rows, done.left) == (2, 0, 0)
        assert rows(sink.writer, "id", "n", "a") == [(1, 2, "new"), (3, 1, "old"), (4, 1, "later")]

    def test_letters_of_one_key_do_not_carry_old_columns_over_newer_ones_between_them(self, open_sink):
        sink = open_sink()
        sink.stream.insert(NARROW, (1, 1, "a", "first"))
        sink.stream.update(NARROW, (1, 2, "b", "second"))
        sink.stream.update(NARROW, (1, 3, "c", "third"))
        sink.stream.update(NARROW, (1, 4, "d", None), unchanged=(3,))
        sink.spoil(1, 3)
        sink.apply()
        sink.mend()
        done = sink.redrive()
        assert (done.letters, done.rows) == (2, 1)
        assert rows(sink.writer, "n", "a", "big") == [(4, "d", "third")]

    def test_a_delete_is_sent_again_with_its_tombstone_and_keeps_older_rows_out(self, open_sink):
        sink = open_sink()
        sink.stream.insert(NARROW, (1, 1, "a", "b"))
        sink.stream.update(NARROW, (1, 2, "a", "b"))
        sink.stream.delete(NARROW, (1,))
        sink.spoil(1)
        sink.spoil(2, 3, part="key")
        sink.apply()
        assert rows(sink.writer, "n") == [(1,)]
        sink.mend()
        done = sink.redrive()
        assert (done.letters, done.failed, done.left) == (3, 0, 0)
        assert rows(sink.writer, "n") == []

    def test_a_delete_without_a_position_stays(self, open_sink):
        sink = open_sink()
        sink.stream.insert(NARROW, (1, 1, "a", "b"))
        sink.stream.delete(NARROW, (1,))
        del sink.stream.records[1]
        sink.spoil(1, part="key")
        sink.apply()
        sink.mend()
        assert (sink.redrive().failed, [code for _, code in sink.left]) == (1, [UNPLACED])
        assert rows(sink.writer, "n") == [(1,)]

    def test_a_part_of_a_row_waits_for_the_row(self, open_sink):
        sink = open_sink()
        sink.stream.insert(NARROW, (1, 1, "a", "b"))
        sink.stream.update(NARROW, (1, 2, "a", None), unchanged=(3,))
        sink.stream.insert(NARROW, (2, 1, "a", "b"))
        sink.spoil(0, 1)
        sink.apply()
        row, update = sink.bad.items()
        sink.bad = dict([update])
        sink.mend()
        assert (sink.redrive().failed, [code for _, code in sink.left]) == (2, ["spark.undecodable", ROWLESS])
        sink.bad = dict([row])
        sink.mend()
        assert (sink.redrive().letters, rows(sink.writer, "id", "n", "big")) == (2, [(1, 2, "b"), (2, 1, "b")])

    def test_letters_of_a_version_that_kept_no_headers_stay(self, open_sink):
        sink = open_sink()
        sink.stream.insert(NARROW, (1, 1, "a", "b"))
        sink.spoil(0)
        sink.apply()
        sink.mend()
        sink.strip()
        assert (sink.redrive().failed, [code for _, code in sink.left]) == (1, [INCOMPLETE])

    def test_an_older_record_goes_into_the_columns_as_they_are_called_now(self, open_sink):
        def shape(called):
            return table(ID, column("n", "int", "integer", column_id=2), column(called, "string", "text", column_id=3))

        sink = open_sink()
        sink.stream.insert(shape("a"), (1, 1, "one"))
        sink.stream.insert(shape("a"), (2, 1, "two"))
        sink.stream.insert(shape("b"), (3, 1, "three"))
        sink.spoil(1)
        sink.apply()
        sink.mend()
        assert (sink.redrive().letters, rows(sink.writer, "id", "b")) == (1, [(1, "one"), (2, "two"), (3, "three")])

    def test_a_change_log_gets_each_letter_once(self, open_sink):
        sink = open_sink(log=True)
        sink.stream.insert(NARROW, (1, 1, "a", "b"))
        sink.stream.update(NARROW, (1, 2, "a", "b"))
        sink.spoil(0)
        sink.apply()
        sink.mend()
        assert sink.redrive(dry_run=True).rows == 1
        assert (rows(sink.writer, "n"), len(sink.left)) == ([(2,)], 1)
        for _ in range(2):
            sink.redrive()
        assert rows(sink.writer, "n") == [(1,), (2,)]

    def test_looking_alone_changes_nothing(self, open_sink):
        sink = open_sink()
        sink.miss_the_first()
        done = sink.redrive(dry_run=True)
        assert (done.letters, done.rows, done.left, rows(sink.writer, "id")) == (1, 1, 1, [(2,)])

    def test_letters_that_the_ledger_stands_before_are_left_to_the_task(self, open_sink):
        sink = open_sink(log=True)
        sink.miss_the_first()
        sink.rewind()
        done = sink.redrive()
        assert (done.letters, done.left, rows(sink.writer, "id")) == (0, 1, [(2,)])
        sink.open_writer((2, 0))
        assert sink.left == []

    def test_rows_of_a_table_without_a_key_stay_behind_a_truncate(self, open_sink):
        sink = open_sink()
        for number in range(3):
            sink.stream.insert(LOG, (number,))
        sink.stream.truncate(LOG)
        sink.stream.insert(LOG, (9,))
        sink.spoil(0)
        sink.apply()
        before = rows(sink.writer, "n")
        sink.mend()
        assert (sink.redrive().letters, rows(sink.writer, "n")) == (1, before)


class Contract(Rows):
    """Of warehouses whose tables commit each alone, so that letters go after their rows."""

    def test_the_sink_goes_on_from_what_letters_made_of_a_table(self, open_sink):
        sink = open_sink()
        sink.miss_the_first()
        sink.stream.update(NARROW, (2, 2, "c", None), unchanged=(3,))
        batch = sink.batch(sink.writer.ledger())
        assert sink.redrive().rows == 1
        sink.writer.apply(batch)
        assert rows(sink.writer, "id", "n", "big") == [(1, 1, "b"), (2, 2, "b")]

    def test_a_process_that_dies_leaves_each_letter_or_its_row(self, open_sink):
        sink = open_sink()
        for number in range(4):
            sink.stream.insert(LOG, (number,))
        sink.spoil(0, 1)
        sink.apply()
        sink.mend()
        sink.killed("redrive.before_commit")
        assert rows(sink.writer, "n") == [(2,), (3,)]
        sink.killed("redrive.after_commit")
        assert rows(sink.writer, "n") == [(0,), (1,), (2,), (3,)]
        # Whoever begins behind them must not make it forgotten that their rows are in.
        sink.stream.insert(LOG, (4,))
        sink.spoil(4)
        sink.apply()
        sink.mend()
        sink.redrive(after=(TOPIC, 0, sink.stream.records[1]["offset"]))
        sink.redrive()
        assert (rows(sink.writer, "n"), sink.left) == ([(0,), (1,), (2,), (3,), (4,)], [])

    def test_of_two_at_once_that_saw_one_table_the_second_puts_nothing_in_again(self, open_sink):
        sink = two_letters(open_sink(log=True))
        done = sink.overtaken(sink.redrive)
        assert (done.letters, done.failed, done.left) == (0, 0, 0)
        assert rows(sink.writer, "n") == [(0,), (1,), (2,), (3,)]

    def test_of_two_at_once_one_that_dies_has_put_its_letters_in(self, open_sink):
        sink = two_letters(open_sink())
        done = sink.overtaken(lambda: sink.killed("redrive.after_commit"))
        assert (done.failed, done.left) == (0, 0)
        assert rows(sink.writer, "n") == [(0,), (1,), (2,), (3,)]

    def test_of_two_at_once_the_slower_one_finds_letters_gone_that_no_state_speaks_of_any_more(self, open_sink):
        def another():
            sink.redrive()
            sink.stream.insert(LOG, (4,))
            sink.spoil(4)
            sink.apply()
            sink.mend()
            sink.redrive()

        sink = two_letters(open_sink())
        done = sink.raced(another)
        assert (done.letters, done.failed, done.left) == (0, 0, 0)
        assert rows(sink.writer, "n") == [(0,), (1,), (2,), (3,), (4,)]

    def test_of_two_at_once_the_second_does_not_forget_what_the_first_one_died_with(self, open_sink):
        def dies():
            sink.killed("redrive.after_commit")
            sink.stream.insert(LOG, (4,))
            sink.spoil(4)
            sink.apply()
            sink.mend()

        sink = two_letters(open_sink())
        sink.redrive(dry_run=True)
        first = sink.letters
        dies()
        first.redrive(sink.shapes, "", (TOPIC, 0, sink.stream.records[1]["offset"]), 60)
        sink.redrive()
        assert (rows(sink.writer, "n"), sink.left) == ([(0,), (1,), (2,), (3,), (4,)], [])

    def test_a_letter_of_a_topic_that_begins_anew_is_none_of_those_before(self, open_sink):
        sink = two_letters(open_sink())
        sink.redrive()
        sink.rewind()
        sink.writer = sink.open_writer((2, 0))
        sink.sent = 0
        sink.apply()
        assert len(sink.left) == 2
        sink.mend()
        assert sink.redrive().rows == 2
        assert rows(sink.writer, "n") == sorted(2 * [(0,), (1,), (2,), (3,)])


def two_letters(sink):
    """Of four rows of a table without a key."""
    for number in range(4):
        sink.stream.insert(LOG, (number,))
    sink.spoil(0, 1)
    sink.apply()
    sink.mend()
    return sink
