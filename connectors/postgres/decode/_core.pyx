# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Turns row messages of pgoutput, and rows of COPY, into framed Avro records in one pass; every read is checked against
the message's end.

Only what is common is done here: rows, begins and commits. What is not (other messages, a form of a value that the walk does not know, a changed
key, a null where none may be) is left to the Python decoder, whose records these are byte for byte.
"""

from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.string cimport memchr

# Kinds are named in native_layouts.py in this order.
cdef enum:
    K_TEXT = 2
    K_INT = 3
    K_LONG = 4
    K_BOOLEAN = 5
    K_FLOAT = 6
    K_DOUBLE = 7
    K_HEX = 8
    K_DECIMAL = 9
    K_VARIABLE = 10
    K_DATE = 11
    K_TIME = 12
    K_TIMESTAMP = 13
    K_ZONED = 14
    K_DIGITS = 15
    KINDS = 16
    XLOG_HEADER = 25
    FRAME_HEADER = 5
    COPY_DATA = 100
    GONE = 120

include "../../capture/native/forms.pxi"
include "../../capture/native/text_forms.pxi"
include "../../capture/native/writer.pxi"
include "_text_forms.pxi"
include "_copied.pxi"
include "_transactions.pxi"


cdef class Core(Transactions):
    """Rows of the stream."""

    cdef Cell* olds
    cdef readonly dict layouts
    cdef Layout last
    cdef uint32_t last_oid
    cdef bint skip_c
    cdef bint skip_u
    cdef bint skip_d

    def __cinit__(self, *args, **more):
        self.olds = <Cell*>calloc(COLUMNS_MAX + 1, sizeof(Cell))
        if self.olds == NULL:
            raise MemoryError
        self.layouts = {}
        self.last = None
        self.last_oid = 0

    def __init__(self, str unsent_header, skipped=()):
        self.unsent_header = unsent_header
        self.skip_c = "c" in skipped
        self.skip_u = "u" in skipped
        self.skip_d = "d" in skipped

    def __dealloc__(self):
        free(self.olds)

    def set_layout(self, oid, layout):
        """The layout of a relation; None forgets it."""
        self.last = None
        if layout is None:
            self.layouts.pop(oid, None)
        else:
            self.layouts[oid] = <Layout?>layout

    def forget(self):
        self.last = None
        self.layouts.clear()

    def feed(self, object data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t room=PY_SSIZE_T_MAX):
        """Frames of a COPY stream between two offsets: returns the offset of the first one that is not done here, or is
        not whole. Stops behind a commit once `room` bytes have been taken."""
        cdef Py_buffer view
        cdef cptr p
        cdef Py_ssize_t size, first = start
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if start < 0 or end > view.len or start > end:
                raise ValueError("offsets outside the buffer")
            while end - start >= FRAME_HEADER + XLOG_HEADER + 1:
                p = <cptr>view.buf + start
                size = be32(p + 1)
                # The size counts itself.
                if p[0] != 100 or p[FRAME_HEADER] != 119 or size > end - start - 1 or size < 4 + XLOG_HEADER + 1:
                    break
                p += FRAME_HEADER
                if not self.row(p, size - 4):
                    if not self.bounds:
                        break
                    if p[XLOG_HEADER] == COMMIT:
                        if not self.commit(p, size - 4, start + size + 1):
                            break
                        if start + size + 1 - first >= room:
                            return start + size + 1
                    elif p[XLOG_HEADER] != BEGIN or not self.begin(p, size - 4):
                        break
                start += size + 1
            return start
        finally:
            PyBuffer_Release(&view)

    def one(self, object data):
        """One message with its header, from the `w` on: whether it was a row that is done here."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return view.len > XLOG_HEADER and self.row(<cptr>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    # -- one message ------------------------------------------------------------------------------------------------

    cdef bint row(self, cptr m, Py_ssize_t size) except -1:
        cdef uint8_t kind = m[XLOG_HEADER]
        cdef Layout layout
        cdef uint32_t oid
        if kind != 73 and kind != 85 and kind != 68 or not self.ready or size < XLOG_HEADER + 8:
            return False
        oid = be32(m + XLOG_HEADER + 1)
        if self.last is not None and oid == self.last_oid:
            layout = self.last
        else:
            found = self.layouts.get(oid)
            if found is None:
                return False
            layout = self.last = <Layout>found
            self.last_oid = oid
        if kind == 85 and self.skip_u and not self.dropping and not layout.ignored and m[XLOG_HEADER + 5] != 78:
            # With an old tuple the key may have changed, which is no update to its readers: the decoder's.
            return False
        if self.dropping or layout.ignored or (kind == 73 and self.skip_c) or (kind == 85 and self.skip_u) \
                or (kind == 68 and self.skip_d):
            self.index += 1
            return True
        try:
            return self.record(layout, kind, m, size)
        except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError):
            # The Python decoder meets the same and names the place.
            return False

    cdef bint record(self, Layout layout, uint8_t kind, cptr m, Py_ssize_t size) except -1:
        cdef Py_ssize_t p = XLOG_HEADER + 5
        cdef uint8_t mark = m[p]
        cdef bint full = False, unsent = False
        cdef Cell* keyed = self.cells
        cdef int i, k
        p += 1
        self.used = 0
        self.put(layout.value_frame)
        if kind == 68:
            if mark != 75 and mark != 79:
                return False
            p = self.cut(layout, m, p, size, self.olds, NULL)
            if p != size or not self.image(layout, m, self.olds, True):
                return False
            self.byte(0)
            keyed = self.olds
        else:
            if kind == 85 and mark == 79:
                p = self.cut(layout, m, p, size, self.olds, NULL)
                if p < 0 or p >= size:
                    return False
                mark = m[p]
                p += 1
                full = True
            if mark != 78:
                return False
            p = self.cut(layout, m, p, size, self.cells, &unsent)
            if p != size or (unsent and kind == 73):
                return False
            if full:
                for i in range(layout.key_count):
                    k = layout.key[i]
                    if not layout.cols[k].plain_key or not same(m, &self.cells[k], &self.olds[k]):
                        return False
                if unsent:
                    for i in range(layout.count):
                        if self.cells[i].at == UNSENT and layout.cols[i].kind != K_SKIP:
                            if self.olds[i].at < 0:
                                return False
                            self.cells[i] = self.olds[i]
                    unsent = False
                if not self.image(layout, m, self.olds, True):
                    return False
            else:
                self.byte(0)
            if not self.image(layout, m, self.cells, False):
                return False
        return self.finish(layout, kind, m, keyed, unsent)

    cdef Py_ssize_t cut(self, Layout layout, cptr m, Py_ssize_t p, Py_ssize_t size, Cell* cells, bint* unsent):
        """Where the values of one tuple lie: the offset behind it, -1 when it is not one for this path."""
        cdef int i
        cdef uint8_t kind
        cdef int64_t n
        if size - p < 2 or <int>be16(m + p) != layout.count:
            return -1
        p += 2
        for i in range(layout.count):
            if p >= size:
                return -1
            kind = m[p]
            p += 1
            if kind == 116:
                if size - p < 4:
                    return -1
                n = be32(m + p)
                p += 4
                if n > size - p:
                    return -1
                cells[i].at = p
                cells[i].size = n
                p += n
            elif kind == 110:
                cells[i].at = NULL_VALUE
            elif kind == 117:
                cells[i].at = UNSENT
                if layout.cols[i].kind == K_SKIP:
                    continue
                if unsent == NULL or layout.cols[i].in_key:
                    return -1
                unsent[0] = True
            else:
                return -1
        return p

    cdef bint finish(self, Layout layout, uint8_t kind, cptr m, Cell* keyed, bint unsent) except -1:
        self.source(layout, be64(m + 1))
        self.byte(0)
        self.put(self.tail_c if kind == 73 else self.tail_u if kind == 85 else self.tail_d)
        if not self.keep(layout, keyed, self.headers(layout) if unsent else None, kind == 68):
            return False
        self.index += 1
        return True

    cdef int source(self, Layout layout, uint64_t lsn) except -1:
        """The source block: what the transaction decides, around what the event does."""
        cdef uint8_t text[24]
        cdef int n = 0
        cdef uint64_t v = lsn
        cdef uint8_t* o
        self.put(self.head)
        while True:
            text[n] = <uint8_t>(48 + v % 10)
            n += 1
            v //= 10
            if not v:
                break
        self.need(len(self.sequence) + n + 16)
        o = self.buffer + self.used
        o[0] = 2
        o = put_long(o + 1, len(self.sequence) + n + 2)
        memcpy(o, PyBytes_AsString(self.sequence), <size_t>len(self.sequence))
        o += len(self.sequence)
        while n:
            n -= 1
            o[0] = text[n]
            o += 1
        o[0] = 34
        o[1] = 93
        self.used = o + 2 - self.buffer
        self.put(self.clocks)
        self.put(layout.names)
        self.put(self.xid)
        self.need(32)
        o = self.buffer + self.used
        o[0] = 2
        o = put_long(o + 1, <int64_t>lsn)
        self.used = o - self.buffer
        self.put(self.rest)
        self.need(32)
        o = put_long(self.buffer + self.used, self.index)
        o[0] = 0
        self.used = o + 1 - self.buffer
        return 0
