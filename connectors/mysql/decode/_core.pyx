# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Turns the rows of rows events into framed Avro records in one pass; every read is checked against the event's end.

Only what is common is done here. A row with what is not (a changed key, a null where none may be, a value that cannot be read) is left to
the Python decoder, whose records these are byte for byte; a value of a form that the walk does not know is its column's call's.
"""

include "../../capture/native/forms.pxi"
include "../../capture/native/text_forms.pxi"
include "../../capture/native/writer.pxi"
include "_binary_forms.pxi"

cdef enum:
    INSERT = 99
    UPDATE = 117
    DELETE = 100


cdef class RowLayout(Layout):
    """How one table's rows lie in events, and how they are written. Made by `native_layouts.py`."""

    cdef int* widths
    cdef int width_count

    def __cinit__(self, *args, **more):
        self.widths = NULL

    def __init__(self, list widths, list columns=None, tuple key=(), tuple place=None):
        """`widths`: by column of the log, the bytes of its values, or below 0 how many bytes of length stand in front of them. Without
        columns: the rows are counted only."""
        cdef int i
        cdef Py_ssize_t most
        if self.widths != NULL:
            return
        if len(widths) > COLUMNS_MAX or (columns is not None and len(columns) != len(widths)):
            raise ValueError("other columns than the log's")
        Layout.__init__(self, columns, key, place)
        self.width_count = <int>len(widths)
        self.widths = <int*>calloc(<size_t>self.width_count + 1, sizeof(int))
        if self.widths == NULL:
            raise MemoryError
        for i in range(self.width_count):
            if not -4 <= widths[i] <= 255 or not widths[i]:
                raise ValueError("a column without a width")
            self.widths[i] = widths[i]
        if self.ignored:
            return
        for i in range(self.count):
            if self.cols[i].kind == K_UUID:
                self.cols[i].room = 2 * ROOM
            elif self.cols[i].kind == K_PADDED:
                self.cols[i].room = ROOM + self.cols[i].arg
            elif self.cols[i].kind == K_MEMBER:
                # What a call would make of each number is known.
                most = max(map(len, self.calls[i].texts), default=0)
                self.cols[i].room = ROOM + most
            elif self.cols[i].kind == K_DECIMAL_TEXT:
                self.cols[i].room = ROOM + 3 * DIGITS_MAX

    def __dealloc__(self):
        free(self.widths)


cdef class Core(BinaryWriter):
    """Collects the records of rows. What the records of one event have in common is set before its rows are written."""

    cdef Cell* olds
    cdef int* before
    cdef int* after
    cdef int before_count
    cdef int after_count
    cdef bytes head
    cdef bytes middle
    cdef bytes tail

    def __cinit__(self, *args, **more):
        self.olds = <Cell*>calloc(COLUMNS_MAX + 1, sizeof(Cell))
        self.before = <int*>calloc(COLUMNS_MAX + 1, sizeof(int))
        self.after = <int*>calloc(COLUMNS_MAX + 1, sizeof(int))
        if self.olds == NULL or self.before == NULL or self.after == NULL:
            raise MemoryError
        self.head = self.middle = self.tail = b""

    def __dealloc__(self):
        free(self.olds)
        free(self.before)
        free(self.after)

    def set_event(self, bytes head, bytes middle, bytes tail):
        """Encoded parts of the source block: in front of the number of the row in its event, between that and the number of the row in
        its transaction, and what follows this."""
        self.head, self.middle, self.tail = head, middle, tail

    def rows(self, RowLayout layout, int op, object data, Py_ssize_t at, tuple present, int64_t row, int64_t index):
        """Rows from `at` to the end of `data`: returns the offset of the first one that is not done here, and how many were done.
        `present`: bitmaps of the columns in the images before and after, empty where there is no such image; `row`, `index`: of the
        first one in its event and its transaction."""
        cdef Py_buffer view
        cdef Py_ssize_t next_at, first = at
        cdef int64_t done = 0
        if op != INSERT and op != UPDATE and op != DELETE:
            raise ValueError("an unknown operation")
        self.before_count = self.columns(layout, self.before, <bytes?>present[0], op != INSERT)
        self.after_count = self.columns(layout, self.after, <bytes?>present[1], op != DELETE)
        if not self.has_all(layout, op):
            raise ValueError("rows that lack values are the decoder's")
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if at < 0 or at > view.len:
                raise ValueError("offset outside the buffer")
            while at < view.len:
                next_at = self.tried(layout, op, <cptr>view.buf, at, view.len, row + done, index + done)
                if next_at <= at:
                    break
                at = next_at
                done += 1
            return at, done
        finally:
            PyBuffer_Release(&view)

    cdef int columns(self, RowLayout layout, int* out, bytes present, bint wanted) except -1:
        """The places of an image's columns; how many."""
        if not wanted:
            return 0
        if len(present) != (layout.width_count + 7) // 8:
            raise ValueError("a bitmap of another length")
        return self.places(layout, out, <cptr>PyBytes_AsString(present))

    @cython.final
    cdef inline bint has_all(self, RowLayout layout, int op) noexcept:
        """Whether new rows have every column, and the rows that they replace. Of others it is the decoder that knows which have to be
        read again."""
        if op == DELETE:
            return True
        return self.after_count == layout.width_count and (op == INSERT or self.before_count == layout.width_count)

    @cython.final
    cdef inline int places(self, RowLayout layout, int* out, cptr bits) noexcept:
        cdef int i, count = 0
        for i in range(layout.width_count):
            if bits[i >> 3] >> (i & 7) & 1:
                out[count] = i
                count += 1
        return count

    cdef Py_ssize_t tried(self, RowLayout layout, int op, cptr m, Py_ssize_t at, Py_ssize_t size, int64_t row,
                          int64_t index) except -2:
        """The offset behind a row that was done; -1: it is the decoder's."""
        cdef Py_ssize_t end = at
        if op != INSERT:
            end = self.cut(layout, self.before, self.before_count, m, end, size, self.olds)
        if op != DELETE and end >= 0:
            end = self.cut(layout, self.after, self.after_count, m, end, size, self.cells)
        if end < 0 or layout.ignored:
            return end
        try:
            return end if self.record(layout, op, m, row, index) else -1
        except Exception:
            # The Python decoder meets the same and names the place.
            return -1

    cdef Py_ssize_t cut(self, RowLayout layout, int* columns, int count, cptr m, Py_ssize_t at, Py_ssize_t size, Cell* cells):
        """Where the values of an image lie: the offset behind it, -1 when it is not whole."""
        cdef cptr nulls = m + at
        cdef int i, n, width
        cdef int64_t length
        if size - at < (count + 7) // 8:
            return -1
        at += (count + 7) // 8
        if count != layout.width_count:
            for i in range(layout.width_count):
                cells[i].at = UNSENT
        for n in range(count):
            i = columns[n]
            if nulls[n >> 3] >> (n & 7) & 1:
                cells[i].at = NULL_VALUE
                continue
            width = layout.widths[i]
            cells[i].at = at
            if width > 0:
                length = width
            else:
                if size - at < -width:
                    return -1
                length = little(m + at, -width)
                if layout.ignored or layout.cols[i].kind == K_CALL:
                    # A call is given the length too.
                    length -= width
                else:
                    at -= width
                    cells[i].at = at
            if length > size - at:
                return -1
            cells[i].size = length
            at += <Py_ssize_t>length
        return at

    cdef bint record(self, RowLayout layout, int op, cptr m, int64_t row, int64_t index) except -1:
        cdef int i, k
        cdef Cell* keyed = self.olds if op == DELETE else self.cells
        self.used = 0
        if op == UPDATE:
            for i in range(layout.key_count):
                k = layout.key[i]
                if not layout.cols[k].plain_key or not same(m, &self.cells[k], &self.olds[k]):
                    return False
        elif op == DELETE:
            for i in range(layout.count):
                if self.olds[i].at == UNSENT:
                    if layout.cols[i].in_key:
                        return False
                    self.olds[i].at = NULL_VALUE
        self.put(layout.value_frame)
        if op == INSERT:
            self.byte(0)
        elif not self.image(layout, m, self.olds, True):
            return False
        if op == DELETE:
            self.byte(0)
        elif not self.image(layout, m, self.cells, False):
            return False
        self.put(self.head)
        self.need(2 * LONG_BYTES_MAX)
        self.used = put_long(self.buffer + self.used, row) - self.buffer
        self.put(self.middle)
        self.need(LONG_BYTES_MAX)
        self.used = put_long(self.buffer + self.used, index) - self.buffer
        self.put(self.tail)
        return self.keep(layout, keyed, None, op == DELETE)


include "_transactions.pxi"
include "_events.pxi"
include "_selected.pxi"
