# Where transactions begin and end, and what the records of their rows have in common.

cdef enum:
    BEGIN_SIZE = 21
    COMMIT_SIZE = 26
    BEGIN = 66
    COMMIT = 67
    # Of each transaction in the source block: its commit's time in milliseconds, microseconds and nanoseconds, its id and
    # its LSN.
    NUMBERS = 5
    CLOCK_NUMBERS = 3

cdef int64_t EPOCH_US = 946684800000000LL
cdef int64_t COMMIT_US_MAX = 8000000000000000LL
"""Beyond it nanoseconds since 1970 do not fit 64 bits."""


cdef class Transactions(TextWriter):
    """The transaction under way. `index` counts its data messages. Where `bounds` says so, begins and commits are taken
    here; `turned`: since `boundaries` was asked."""

    cdef bytes head
    cdef bytes clocks
    cdef bytes xid
    cdef bytes rest
    cdef bytes sequence
    cdef bytes tail_c
    cdef bytes tail_u
    cdef bytes tail_d
    cdef tuple runs
    cdef tuple tails
    cdef uint64_t final_lsn
    cdef int64_t commit_us
    cdef int64_t ts_ms
    cdef uint32_t number
    cdef bint begun
    cdef list parts
    cdef tuple ended
    cdef readonly bint turned
    cdef public bint bounds
    cdef public uint64_t resume_lsn
    """Transactions up to this LSN are left to the decoder, which drops what was handed on."""
    cdef public int64_t index
    cdef public bint dropping
    cdef public bint ready
    """Set between a begin and its commit."""

    def __cinit__(self, *args, **more):
        self.ready = self.bounds = self.turned = self.begun = False
        self.runs = self.tails = self.ended = None
        self.parts = []
        self.head = self.clocks = self.xid = self.rest = self.sequence = b""
        self.tail_c = self.tail_u = self.tail_d = b""

    def enter(self, uint64_t final_lsn, uint32_t number, int64_t ts_ms, int64_t index, bint dropping):
        """The decoder has read the begin of a transaction with this id, and so many of its messages."""
        self.final_lsn, self.number, self.ts_ms = final_lsn, number, ts_ms
        self.index, self.dropping, self.ready = index, dropping, True

    def leave(self, bytes sequence):
        """The decoder stands between two transactions. `sequence`: the start of that of the next one's events."""
        self.final_lsn, self.ready, self.sequence = 0, False, sequence

    def boundaries(self):
        """What was met since this was asked: the last commit or None, the begin behind it or None. A commit: (parts that
        end with it, commit as a tuple, transaction id, offset behind it); a part: as `take` says, and the time of the
        commit in milliseconds. A begin: as a tuple."""
        ended, begun = None, None
        if self.ended is not None:
            ended = (self.parts, *self.ended)
            self.parts, self.ended = [], None
        if self.begun:
            begun = (self.final_lsn, self.commit_us, self.number)
        self.turned = self.begun = False
        return ended, begun

    # -- what records have in common ----------------------------------------------------------------------------------

    def set_source(self, bytes head, bytes clocks, bytes xid, bytes rest, bytes sequence):
        """Encoded parts of the source block that the transaction decides, and the start of `sequence`."""
        self.head, self.clocks, self.xid, self.rest, self.sequence = head, clocks, xid, rest, sequence

    def set_pieces(self, tuple runs, tuple tails):
        """`runs`: the parts of the source block, each as the pieces between the numbers that each transaction has of its own.
        `tails`: what follows the transaction block in a create, an update and a delete, around the numbers of the clock."""
        if len(runs) != 4 or sum(map(len, runs)) != 4 + NUMBERS or set(map(len, tails)) != {1 + CLOCK_NUMBERS}:
            raise ValueError("other numbers than are known here")
        self.runs, self.tails = runs, tails

    def set_numbers(self, int64_t ts_ms, int64_t ts_us, int64_t ts_ns, int64_t xid, int64_t lsn, bytes sequence):
        """As `set_source`, of the numbers that a transaction has of its own."""
        cdef int64_t[NUMBERS] numbers
        numbers[0], numbers[1], numbers[2], numbers[3], numbers[4] = ts_ms, ts_us, ts_ns, xid, lsn
        self.number_source(numbers)
        self.sequence = sequence

    cdef int number_source(self, int64_t* numbers) except -1:
        cdef Py_ssize_t at = 0
        self.head = self.spliced(<tuple?>self.runs[0], numbers, &at)
        self.clocks = self.spliced(<tuple?>self.runs[1], numbers, &at)
        self.xid = self.spliced(<tuple?>self.runs[2], numbers, &at)
        self.rest = self.spliced(<tuple?>self.runs[3], numbers, &at)
        return 0

    def set_clock(self, int64_t now_ns):
        """The time that records carry as that of their making."""
        cdef int64_t[CLOCK_NUMBERS] numbers
        cdef Py_ssize_t at = 0
        numbers[0], numbers[1], numbers[2] = now_ns // 1000000, now_ns // 1000, now_ns
        self.tail_c = self.spliced(<tuple?>self.tails[0], numbers, &at)
        at = 0
        self.tail_u = self.spliced(<tuple?>self.tails[1], numbers, &at)
        at = 0
        self.tail_d = self.spliced(<tuple?>self.tails[2], numbers, &at)

    cdef bytes spliced(self, tuple pieces, int64_t* numbers, Py_ssize_t* at):
        """The pieces with a long between each two of them; `at` counts the longs that are used."""
        cdef Py_ssize_t i
        self.used = 0
        for i in range(len(pieces)):
            if i:
                self.need(LONG_BYTES_MAX)
                self.used = put_long(self.buffer + self.used, numbers[at[0]]) - self.buffer
                at[0] += 1
            self.put(<bytes?>pieces[i])
        return PyBytes_FromStringAndSize(<char*>self.buffer, self.used)

    # -- boundaries ---------------------------------------------------------------------------------------------------

    cdef bint begin(self, cptr m, Py_ssize_t size) except -1:
        """Takes a begin; False: it is the decoder's."""
        cdef uint64_t lsn
        cdef int64_t us
        cdef int64_t[NUMBERS] numbers
        if size != XLOG_HEADER + BEGIN_SIZE or self.final_lsn:
            return False
        lsn, us = be64(m + XLOG_HEADER + 1), <int64_t>be64(m + XLOG_HEADER + 9)
        if lsn <= self.resume_lsn or lsn >> 63 or us > COMMIT_US_MAX or us < -COMMIT_US_MAX:
            return False
        us += EPOCH_US
        self.number = be32(m + XLOG_HEADER + 17)
        self.final_lsn, self.commit_us, self.ts_ms = lsn, us, floor_div(us, 1000)
        numbers[0], numbers[1], numbers[2], numbers[3], numbers[4] = self.ts_ms, us, us * 1000, self.number, lsn
        self.number_source(numbers)
        self.index, self.dropping = 0, False
        self.ready = self.begun = self.turned = True
        return True

    cdef bint commit(self, cptr m, Py_ssize_t size, Py_ssize_t end) except -1:
        """Takes a commit that ends at this offset; False: it is the decoder's."""
        cdef uint64_t lsn
        cdef int64_t us
        if size != XLOG_HEADER + COMMIT_SIZE or not self.final_lsn:
            return False
        lsn, us = be64(m + XLOG_HEADER + 2), <int64_t>be64(m + XLOG_HEADER + 18)
        if lsn != self.final_lsn or us > COMMIT_US_MAX or us < -COMMIT_US_MAX:
            return False
        made = self.take()
        if made is not None:
            self.parts.append((*made, self.ts_ms))
        self.ended = ((lsn, be64(m + XLOG_HEADER + 10), us + EPOCH_US), self.number, end)
        self.sequence = f'["{lsn}","'.encode()
        self.final_lsn, self.ready, self.begun, self.turned = 0, False, False, True
        return True
