# Where transactions begin and end in the log, and what the records of their rows have in common.

cdef enum:
    NO_GTID = 0
    MYSQL_GTID = 1
    MARIADB_GTID = 2
    GTID_TEXT_MAX = 96  # a UUID, a tag of 32 letters and a number, with colons between them, have 89
    SOURCE_BYTES = 16
    GATHERED_MAX = 64   # records from which on the next transaction begins a part of its own
    PIECES = 3

cdef int64_t COMMIT_US_MAX = 8000000000000000LL
"""Beyond it nanoseconds since 1970 do not fit 64 bits."""
cdef int64_t NUMBER_MAX = (<int64_t>1 << 62) - 1


cdef struct Gtid:
    int kind
    uint32_t domain
    uint32_t server
    uint8_t[SOURCE_BYTES] source
    uint64_t sequence
    int text_size
    uint8_t[GTID_TEXT_MAX] text


cdef class Transactions(Core):
    """The transaction under way. `index` counts its rows, `last` is the number of the last one that began. What ends and begins here is
    asked for by `taken`."""

    cdef tuple pieces
    cdef bytes file
    cdef bytes tail_c
    cdef bytes tail_u
    cdef bytes tail_d
    cdef Gtid gtid
    cdef int64_t number
    cdef int64_t commit_us
    cdef int64_t thread
    cdef uint32_t server_id
    cdef bint inside
    cdef bint begun
    cdef bint group
    cdef readonly int64_t index
    cdef readonly int64_t last
    cdef list parts
    cdef int64_t closed
    cdef int64_t gathered_ms
    cdef Py_ssize_t mark
    cdef Py_ssize_t mark_total
    cdef Py_ssize_t mark_largest
    cdef object mark_topic
    cdef bint ended
    cdef tuple ended_with
    cdef list passed
    cdef Gtid run
    cdef uint64_t run_first

    def __cinit__(self, *args, **more):
        self.pieces, self.ended_with, self.file = (b"", b"", b""), None, b""
        self.tail_c = self.tail_u = self.tail_d = b""
        self.inside = self.begun = self.group = self.ended = False
        self.gtid.kind = self.run.kind = NO_GTID
        self.gtid.text_size = 0
        self.parts, self.passed, self.mark_topic = [], [], ""

    def set_pieces(self, tuple pieces):
        """Encoded fields of the source block that all records have: in front of the time in milliseconds, in front of the database, and in
        front of the time in microseconds."""
        if len(pieces) != PIECES:
            raise ValueError("other fields than are known here")
        self.pieces = (<bytes?>pieces[0], <bytes?>pieces[1], <bytes?>pieces[2])

    def set_tails(self, bytes create, bytes update, bytes delete):
        """What follows the number of a row in its transaction, by operation."""
        self.tail_c, self.tail_u, self.tail_d = create, update, delete

    def enter(self, int64_t last, int64_t index, tuple transaction):
        """The decoder stands behind so many rows of this transaction: (number, commit's time in microseconds, server id, GTID as text,
        thread or -1, whether a commit ends it). None: between two. Returns whether what follows may be read here; else the decoder reads
        the transaction to its end."""
        cdef bytes text
        self.last, self.index = last, index
        self.inside = self.begun = self.ended = False
        self.mark = self.mark_total = self.mark_largest = 0
        if transaction is None:
            return True
        number, us, server_id, gtid, thread, group = transaction
        text = gtid.encode()
        if len(text) > GTID_TEXT_MAX or not 0 <= us <= COMMIT_US_MAX:
            return False
        self.number, self.commit_us, self.server_id, self.thread, self.group = number, us, server_id, thread, group
        # Its GTID is the decoder's to pass on.
        self.gtid.kind, self.gtid.text_size = NO_GTID, <int>len(text)
        memcpy(self.gtid.text, PyBytes_AsString(text), <size_t>len(text))
        self.gathered_ms = self.commit_us // 1000
        self.inside = True
        return True

    def taken(self):
        """What was met since this was asked: the parts that end with a commit; the GTIDs that have passed, but for that of a transaction
        that was entered; the last commit or None; the transaction that has begun and goes on or None; the part of the one that goes on
        or None. A part: as `take` says, and the commit's time in milliseconds. GTIDs: (domain, server, number) or (source, first number,
        last number). A commit: (number, microseconds, server id, GTID as text, offset in the file behind it, whether it began here)."""
        rest, begun = None, None
        if self.inside and self.mark:
            self.split()
        if not self.inside:
            self.close_part()
        else:
            if self.begun:
                begun = (self.number, self.commit_us, self.server_id, self.text(), own_of(&self.gtid, self.gtid.sequence))
            made = self.take()
            if made is not None:
                rest = (*made, self.gathered_ms)
        self.flush_gtids()
        found = (self.parts, self.passed, self.ended_with, begun, rest)
        self.parts, self.passed, self.ended_with = [], [], None
        self.begun = self.ended = False
        self.mark = self.mark_total = self.mark_largest = self.closed = 0
        return found

    @property
    def made(self):
        """Bytes of the records that were written since `taken` was asked."""
        return self.written()

    cdef inline int64_t written(self):
        return self.closed + (self.total if self.records else 0)

    def state(self):
        """Of the transaction under way: its thread or -1, and whether a commit ends it."""
        return self.thread, bool(self.group)

    cdef str text(self):
        return PyBytes_FromStringAndSize(<char*>self.gtid.text, self.gtid.text_size).decode()

    # -- parts --------------------------------------------------------------------------------------------------------

    cdef int close_part(self) except -1:
        """Ends the part that is being gathered."""
        if self.records:
            self.closed += self.total
            self.parts.append((*self.take(), self.gathered_ms))
        return 0

    cdef int split(self) except -1:
        """Ends the part of the transactions in front of the one that goes on."""
        cdef list records = self.records[:self.mark]
        counts = {}
        self.turn(None)
        for record in records:
            counts[record[0]] = counts.get(record[0], 0) + 1
        self.parts.append((records, self.mark_total, self.mark_largest, self.mark_topic, counts, self.gathered_ms))
        for topic, number in counts.items():
            self.counts[topic] -= number
            if not self.counts[topic]:
                del self.counts[topic]
        del self.records[:self.mark]
        self.total -= self.mark_total
        self.closed += self.mark_total
        return 0

    # -- boundaries ---------------------------------------------------------------------------------------------------

    cdef bint begin(self, int64_t us) except -1:
        """A transaction with the GTID in `gtid` begins, which was committed then; False: it is the decoder's."""
        cdef int64_t ms = us // 1000
        if us < 0 or us > COMMIT_US_MAX or self.last >= NUMBER_MAX:
            return False
        if self.records and (ms != self.gathered_ms or len(self.records) >= GATHERED_MAX):
            self.close_part()
        self.gathered_ms = ms
        self.mark, self.mark_total = len(self.records), self.total if self.records else 0
        self.mark_largest, self.mark_topic = (self.largest, self.largest_topic) if self.mark else (0, "")
        self.largest = 0
        self.last = self.number = us if us > self.last else self.last + 1
        self.commit_us, self.thread, self.index = us, -1, 0
        self.inside = self.begun = True
        return True

    cdef int end(self) except -1:
        if self.mark_largest > self.largest:
            self.largest, self.largest_topic = self.mark_largest, self.mark_topic
        if self.begun:
            self.pass_gtid()
        self.inside, self.ended = False, True
        return 0

    cdef int note_end(self, int64_t position) except -1:
        """The commit that was met ends there."""
        self.ended_with = (self.number, self.commit_us, self.server_id, self.text(), position, bool(self.begun))
        self.ended = self.begun = False
        return 0

    cdef int pass_gtid(self) except -1:
        """Of a domain the highest number is passed on, of a source the runs of its numbers."""
        cdef Gtid* own = &self.gtid
        cdef Gtid* run = &self.run
        if own.kind == NO_GTID:
            return 0
        if own.kind == run.kind:
            if own.kind == MARIADB_GTID and own.domain == run.domain and own.sequence > run.sequence:
                run.server, run.sequence = own.server, own.sequence
                return 0
            if own.kind == MYSQL_GTID and own.sequence == run.sequence + 1 and not memcmp(own.source, run.source, SOURCE_BYTES):
                run.sequence = own.sequence
                return 0
        self.flush_gtids()
        self.run = self.gtid
        self.run_first = own.sequence
        return 0

    cdef int flush_gtids(self) except -1:
        found = own_of(&self.run, self.run_first)
        if found is not None:
            self.passed.append(found)
        self.run.kind = NO_GTID
        return 0

    # -- the source block -----------------------------------------------------------------------------------------------

    cdef int source(self, bytes database, bytes table, int64_t position) except -1:
        """Sets what the records of an event have in common."""
        cdef uint8_t* o
        self.used = 0
        self.put(<bytes>self.pieces[0])
        self.long(self.commit_us // 1000)
        self.put(<bytes>self.pieces[1])
        self.put(database)
        self.put(<bytes>self.pieces[2])
        self.byte(2)
        self.long(self.commit_us)
        self.byte(2)
        self.long(self.commit_us * 1000)
        self.byte(2)
        self.put(table)
        self.long(self.server_id)
        if self.gtid.text_size:
            self.need(GTID_TEXT_MAX + ROOM)
            o = self.buffer + self.used
            o[0] = 2
            o = put_bytes(o + 1, self.gtid.text, self.gtid.text_size)
            self.used = o - self.buffer
        else:
            self.byte(0)
        self.put(self.file)
        self.long(position)
        self.head = PyBytes_FromStringAndSize(<char*>self.buffer, self.used)
        self.used = 0
        if self.thread < 0:
            self.byte(0)
        else:
            self.byte(2)
            self.long(self.thread)
        # The statement is shown by the decoder only.
        self.byte(0)
        self.long(self.number)
        self.middle = PyBytes_FromStringAndSize(<char*>self.buffer, self.used)
        return 0

    cdef inline int long(self, int64_t value) except -1:
        self.need(LONG_BYTES_MAX)
        self.used = put_long(self.buffer + self.used, value) - self.buffer
        return 0


cdef object own_of(Gtid* gtid, uint64_t first):
    if gtid.kind == MARIADB_GTID:
        return gtid.domain, gtid.server, gtid.sequence
    if gtid.kind == MYSQL_GTID:
        return PyBytes_FromStringAndSize(<char*>gtid.source, SOURCE_BYTES), first, gtid.sequence
    return None


cdef int put_number(uint8_t* o, uint64_t v) noexcept nogil:
    """A number as decimal digits, at most 20; returns how many."""
    cdef uint64_t left = v
    cdef int digits = 1
    while left >= 10:
        left //= 10
        digits += 1
    put_digits(o, v, digits)
    return digits


cdef void write_gtid(Gtid* gtid) noexcept nogil:
    """The text of a GTID."""
    cdef uint8_t* o = gtid.text
    cdef int i
    if gtid.kind == MARIADB_GTID:
        o += put_number(o, gtid.domain)
        o[0] = 45
        o += 1 + put_number(o + 1, gtid.server)
        o[0] = 45
        o += 1 + put_number(o + 1, gtid.sequence)
    elif gtid.kind == MYSQL_GTID:
        for i in range(SOURCE_BYTES):
            o[0], o[1] = hex_digit(gtid.source[i] >> 4), hex_digit(gtid.source[i] & 15)
            o += 2
            if i == 3 or i == 5 or i == 7 or i == 9:
                o[0] = 45
                o += 1
        o[0] = 58
        o += 1 + put_number(o + 1, gtid.sequence)
    gtid.text_size = <int>(o - gtid.text)
