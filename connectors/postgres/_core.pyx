# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Turns row messages of pgoutput into framed Avro records in one pass; every read is checked against the message's end.

Only what is common is done here. What is not (other messages, a form of a value that the walk does not know, a changed
key, a null where none may be) is left to the Python decoder, whose records these are byte for byte.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy

cdef extern from "Python.h":
    double PyOS_string_to_double(const char* s, char** endptr, void* overflow) except? -1.0

# Kinds are named in kinds.py in this order.
cdef enum:
    K_SKIP = 0
    K_CALL = 1
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
    COLUMNS_MAX = 1664
    XLOG_HEADER = 25
    FRAME_HEADER = 5
    DECIMAL_DIGITS_MAX = 18
    NUMBER_CHARS_MAX = 64
    NULL_VALUE = -1
    UNSENT = -2

ctypedef const uint8_t* cptr

cdef struct Col:
    int kind
    int arg
    int branch      # 1: one byte says whether there is a value
    uint8_t some
    uint8_t null
    int in_key
    int plain_key   # equal text forms mean equal values

cdef double* POWERS = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17,
                       1e18, 1e19, 1e20, 1e21, 1e22]


cdef inline uint32_t be16(cptr p) noexcept nogil:
    return (<uint32_t>p[0] << 8) | p[1]


cdef inline uint32_t be32(cptr p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline uint64_t be64(cptr p) noexcept nogil:
    return (<uint64_t>be32(p) << 32) | be32(p + 4)


cdef inline uint8_t* put_long(uint8_t* o, int64_t value) noexcept nogil:
    """A zig-zag varint: at most 10 bytes."""
    cdef uint64_t n = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    while n > 127:
        o[0] = <uint8_t>(n | 128)
        o += 1
        n >>= 7
    o[0] = <uint8_t>n
    return o + 1


cdef inline bint is_digit(uint8_t c) noexcept nogil:
    return <uint8_t>(c - 48) < 10


cdef inline int two(cptr p) noexcept nogil:
    """Two digits as a number, -1 when they are none."""
    if not is_digit(p[0]) or not is_digit(p[1]):
        return -1
    return (p[0] - 48) * 10 + p[1] - 48


cdef bint is_utf8(cptr s, Py_ssize_t n) noexcept nogil:
    """As strict as Python's decoder: no overlong forms, no surrogates, nothing above U+10FFFF."""
    cdef Py_ssize_t i = 0
    cdef uint64_t eight
    cdef uint8_t c, d
    while i < n:
        if n - i >= 8:
            memcpy(&eight, s + i, 8)
            if not eight & 0x8080808080808080ULL:
                i += 8
                continue
        c = s[i]
        if c < 128:
            i += 1
        elif c < 0xC2:
            return False
        elif c < 0xE0:
            if n - i < 2 or s[i + 1] & 0xC0 != 0x80:
                return False
            i += 2
        elif c < 0xF0:
            if n - i < 3 or s[i + 2] & 0xC0 != 0x80:
                return False
            d = s[i + 1]
            if d & 0xC0 != 0x80 or (c == 0xE0 and d < 0xA0) or (c == 0xED and d > 0x9F):
                return False
            i += 3
        elif c < 0xF5:
            if n - i < 4 or s[i + 2] & 0xC0 != 0x80 or s[i + 3] & 0xC0 != 0x80:
                return False
            d = s[i + 1]
            if d & 0xC0 != 0x80 or (c == 0xF0 and d < 0x90) or (c == 0xF4 and d > 0x8F):
                return False
            i += 4
        else:
            return False
    return True


cdef inline bint to_int(cptr s, Py_ssize_t n, int64_t* out) noexcept nogil:
    """`-?[0-9]{1,18}`; what is longer is left to the caller."""
    cdef int64_t v = 0
    cdef bint negative = n > 0 and s[0] == 45
    cdef Py_ssize_t i = 1 if negative else 0
    if n - i < 1 or n - i > DECIMAL_DIGITS_MAX:
        return False
    while i < n:
        if not is_digit(s[i]):
            return False
        v = v * 10 + (s[i] - 48)
        i += 1
    out[0] = -v if negative else v
    return True


cdef inline bint to_days(cptr s, int64_t* out) noexcept nogil:
    """`YYYY-MM-DD` as days since 1970-01-01."""
    cdef int64_t century = two(s), year = two(s + 2), month = two(s + 5), day = two(s + 8)
    if century < 0 or year < 0 or month < 0 or day < 0 or s[4] != 45 or s[7] != 45:
        return False
    year += century * 100
    if year < 1:
        return False
    if month <= 2:
        year -= 1
        month += 12
    out[0] = 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719469
    return True


cdef inline bint to_time(cptr s, Py_ssize_t n, int64_t* out) noexcept nogil:
    """`HH:MM:SS` and up to six digits after a point, in microseconds."""
    cdef int64_t hour, minute, second, us
    cdef int64_t unit = 100000
    cdef Py_ssize_t i
    if n < 8 or n == 9 or n > 15 or s[2] != 58 or s[5] != 58:
        return False
    hour, minute, second = two(s), two(s + 3), two(s + 6)
    if hour < 0 or minute < 0 or second < 0:
        return False
    us = (hour * 3600 + minute * 60 + second) * 1000000
    if n > 8:
        if s[8] != 46:
            return False
        for i in range(9, n):
            if not is_digit(s[i]):
                return False
            us += (s[i] - 48) * unit
            unit = unit // 10
    out[0] = us
    return True


cdef inline int64_t floor_div(int64_t a, int64_t b) noexcept nogil:
    cdef int64_t q = a // b
    return q - 1 if a % b < 0 else q


cdef inline uint8_t* put_unscaled(uint8_t* o, int64_t v) noexcept nogil:
    """Bytes that hold the shortest two's complement, big-endian: at most 9 with their size."""
    cdef uint64_t magnitude = <uint64_t>(v ^ (v >> 63))
    cdef int size = 1, i
    while size < 8 and magnitude >> (8 * size - 1):
        size += 1
    o[0] = <uint8_t>(size << 1)
    for i in range(size):
        o[1 + i] = <uint8_t>(<uint64_t>v >> (8 * (size - 1 - i)))
    return o + 1 + size


cdef inline bint to_decimal(cptr s, Py_ssize_t n, int64_t* out, Py_ssize_t* scale) noexcept nogil:
    r"""`-?[0-9]+(\.[0-9]+)?` with at most 18 digits, as an unscaled number and its scale."""
    cdef int64_t v = 0
    cdef bint negative = n > 0 and s[0] == 45
    cdef Py_ssize_t i = 1 if negative else 0, first = i, point = -1
    if n - i < 1 or n - i > DECIMAL_DIGITS_MAX + 1 or not is_digit(s[n - 1]):
        return False
    while i < n:
        if is_digit(s[i]):
            v = v * 10 + (s[i] - 48)
        elif s[i] == 46 and point < 0 and i > first:
            point = i
        else:
            return False
        i += 1
    if point < 0 and n - first > DECIMAL_DIGITS_MAX:
        return False
    scale[0] = n - point - 1 if point >= 0 else 0
    out[0] = -v if negative else v
    return True


cdef int to_double(cptr s, Py_ssize_t n, double* out) except -1:
    """Exact, as Python's: short numbers by one correctly rounded operation, others by its own function. 0: not a number."""
    cdef uint64_t mantissa = 0
    cdef bint negative = n > 0 and s[0] == 45
    cdef Py_ssize_t i = 1 if negative else 0
    cdef int digits = 0, scale = 0, seen = 0
    cdef double v
    cdef char copy[NUMBER_CHARS_MAX]
    if n < 1 or n >= NUMBER_CHARS_MAX:
        return 0
    while i < n and digits < 19:
        if is_digit(s[i]):
            mantissa = mantissa * 10 + (s[i] - 48)
            digits += 1
            scale += seen
        elif s[i] == 46 and not seen:
            seen = 1
        else:
            break
        i += 1
    if i == n and digits and is_digit(s[n - 1]) and mantissa < <uint64_t>1 << 53 and scale <= 22:
        v = <double>mantissa / POWERS[scale]
        out[0] = -v if negative else v
        return 1
    for i in range(n):
        if not (is_digit(s[i]) or s[i] == 45 or s[i] == 43 or s[i] == 46 or s[i] == 101):
            return 0
        copy[i] = <char>s[i]
    copy[n] = 0
    out[0] = PyOS_string_to_double(copy, NULL, NULL)
    return 1


cdef uint32_t murmur2(cptr data, Py_ssize_t size) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995, h = 0x9747B28CU ^ <uint32_t>size, k
    cdef Py_ssize_t whole = size & ~<Py_ssize_t>3, i = 0
    while i < whole:
        k = data[i] | (<uint32_t>data[i + 1] << 8) | (<uint32_t>data[i + 2] << 16) | (<uint32_t>data[i + 3] << 24)
        k *= m
        k ^= k >> 24
        k *= m
        h = (h * m) ^ k
        i += 4
    if size & 3:
        k = 0
        while i < size:
            k |= <uint32_t>data[i] << (8 * (i & 3))
            i += 1
        h = (h ^ k) * m
    h ^= h >> 13
    h *= m
    return h ^ (h >> 15)


cdef class Layout:
    """How one table's rows are written: columns, frames, where the records go. Made by `lane.py`."""

    cdef Col* cols
    cdef int count
    cdef int* key
    cdef int key_count
    cdef object topic
    cdef bytes key_frame
    cdef bytes value_frame
    cdef bytes names
    cdef list calls
    cdef list zeroes
    cdef list unsent
    cdef list indexes
    cdef uint32_t partitions
    cdef int64_t size_max
    cdef bint tombstones
    cdef bint ignored

    def __cinit__(self):
        self.cols = NULL
        self.key = NULL
        self.ignored = True

    def __init__(self, list columns=None, tuple key=(), tuple place=None):
        """`columns`: (kind, argument, branch byte of a value or None, plain as key, call, zero, unsent, index) each;
        `place`: topic, key frame, value frame, partitions, most bytes of a record, tombstones, names of the table.
        Without columns: the table's rows are counted only."""
        cdef int i
        if columns is None or place is None or self.cols != NULL:
            return
        if len(columns) > COLUMNS_MAX or len(key) > len(columns):
            raise ValueError("too many columns")
        self.count = <int>len(columns)
        self.key_count = <int>len(key)
        self.cols = <Col*>calloc(<size_t>self.count + 1, sizeof(Col))
        self.key = <int*>calloc(<size_t>self.key_count + 1, sizeof(int))
        if self.cols == NULL or self.key == NULL:
            raise MemoryError
        self.calls, self.zeroes, self.unsent, self.indexes = [], [], [], []
        for i in range(self.count):
            kind, arg, some, plain, call, zero, unsent, index = columns[i]
            if not 0 <= kind < KINDS:
                raise ValueError("unknown kind")
            self.cols[i].kind = kind
            self.cols[i].arg = arg
            self.cols[i].branch = some is not None
            self.cols[i].some = some or 0
            self.cols[i].null = 2 - self.cols[i].some
            self.cols[i].plain_key = bool(plain)
            self.calls.append(call)
            self.zeroes.append(zero)
            self.unsent.append(unsent)
            self.indexes.append(index)
        for i in range(self.key_count):
            at = key[i]
            if not 0 <= at < self.count or self.cols[<int>at].kind == K_SKIP:
                raise ValueError("the key has no such column")
            self.key[i] = at
            self.cols[self.key[i]].in_key = 1
        self.topic, self.key_frame, self.value_frame, partitions, size_max, tombstones, self.names = place
        if partitions < 1:
            raise ValueError("a topic has partitions")
        self.partitions = partitions
        self.size_max = size_max
        self.tombstones = tombstones
        self.ignored = False

    def __dealloc__(self):
        free(self.cols)
        free(self.key)


cdef struct Cell:
    int64_t at       # in the message; NULL_VALUE, UNSENT
    int64_t size
    int64_t out      # where its encoded form begins, behind the branch byte
    int64_t out_size


cdef class Core:
    """Collects records until `take`. `index` counts the data messages of the transaction."""

    cdef uint8_t* buffer
    cdef Py_ssize_t used
    cdef Py_ssize_t room
    cdef Cell* cells
    cdef Cell* olds
    cdef readonly dict layouts
    cdef Layout last
    cdef uint32_t last_oid
    cdef list records
    cdef Py_ssize_t total
    cdef Py_ssize_t largest
    cdef object largest_topic
    cdef bytes head
    cdef bytes clocks
    cdef bytes xid
    cdef bytes rest
    cdef bytes sequence
    cdef bytes tail_c
    cdef bytes tail_u
    cdef bytes tail_d
    cdef str unsent_header
    cdef bint skip_c
    cdef bint skip_u
    cdef bint skip_d
    cdef public int64_t index
    cdef public bint dropping
    cdef public bint ready
    """Set between a begin and its commit."""

    def __cinit__(self):
        self.buffer = NULL
        self.room = 0
        self.cells = <Cell*>calloc(COLUMNS_MAX + 1, sizeof(Cell))
        self.olds = <Cell*>calloc(COLUMNS_MAX + 1, sizeof(Cell))
        if self.cells == NULL or self.olds == NULL:
            raise MemoryError
        self.layouts = {}
        self.records = []
        self.last = None
        self.last_oid = 0
        self.largest_topic = ""
        self.ready = False
        self.head = self.clocks = self.xid = self.rest = self.sequence = b""
        self.tail_c = self.tail_u = self.tail_d = b""

    def __init__(self, str unsent_header, skipped=()):
        self.unsent_header = unsent_header
        self.skip_c = "c" in skipped
        self.skip_u = "u" in skipped
        self.skip_d = "d" in skipped

    def __dealloc__(self):
        free(self.buffer)
        free(self.cells)
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

    def set_source(self, bytes head, bytes clocks, bytes xid, bytes rest, bytes sequence):
        """Encoded parts of the source block that the transaction decides, and the start of `sequence`."""
        self.head, self.clocks, self.xid, self.rest, self.sequence = head, clocks, xid, rest, sequence

    def set_tails(self, dict tails):
        self.tail_c, self.tail_u, self.tail_d = tails["c"], tails["u"], tails["d"]

    def take(self):
        """What has been collected, or None: (records, bytes, bytes of the largest, its topic)."""
        if not self.records:
            return None
        out = (self.records, self.total, self.largest, self.largest_topic)
        self.records, self.total, self.largest, self.largest_topic = [], 0, 0, ""
        return out

    def feed(self, object data, Py_ssize_t start, Py_ssize_t end):
        """Frames of a COPY stream between two offsets: returns the offset of the first one that is not a row that is
        done here, or is not whole."""
        cdef Py_buffer view
        cdef cptr p
        cdef Py_ssize_t size
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if start < 0 or end > view.len or start > end:
                raise ValueError("offsets outside the buffer")
            while end - start >= FRAME_HEADER + XLOG_HEADER + 1:
                p = <cptr>view.buf + start
                size = be32(p + 1)
                # The size counts itself.
                if p[0] != 100 or p[FRAME_HEADER] != 119 or size > end - start - 1:
                    break
                if size < 4 + XLOG_HEADER + 1 or not self.row(p + FRAME_HEADER, size - 4):
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

    cdef bint image(self, Layout layout, cptr m, Cell* cells, bint is_before) except -1:
        """A row behind its branch byte. A value that is not there: null, in `before` else the zero of its type."""
        cdef int i
        cdef Col* col
        cdef Cell* cell
        self.byte(2)
        for i in range(layout.count):
            col = &layout.cols[i]
            if col.kind == K_SKIP:
                continue
            cell = &cells[i]
            if cell.at >= 0:
                self.value(layout, i, m + cell.at, <Py_ssize_t>cell.size, cell)
                continue
            found = None
            if cell.at == UNSENT:
                found = layout.unsent[i]
            elif col.branch:
                self.byte(col.null)
                continue
            elif is_before and not col.in_key:
                found = layout.zeroes[i]
            if found is None:
                return False
            self.put(<bytes>found)
        return True

    cdef bint finish(self, Layout layout, uint8_t kind, cptr m, Cell* keyed, bint unsent) except -1:
        cdef Py_ssize_t key_at, key_end, value_size
        cdef bytes tail = self.tail_c if kind == 73 else self.tail_u if kind == 85 else self.tail_d
        cdef uint32_t partition = 0
        self.source(layout, be64(m + 1))
        self.byte(0)
        self.put(tail)
        value_size = self.used
        key = None
        if layout.key_count:
            key_at = self.used
            if not self.key_of(layout, keyed):
                return False
            key_end = self.used
            partition = (murmur2(self.buffer + key_at + len(layout.key_frame), key_end - key_at - len(layout.key_frame))
                         & 0x7FFFFFFF) % layout.partitions
            key = PyBytes_FromStringAndSize(<char*>self.buffer + key_at, key_end - key_at)
        if self.used > layout.size_max:
            return False
        value = PyBytes_FromStringAndSize(<char*>self.buffer, value_size)
        headers = self.headers(layout) if unsent else None
        if headers is None:
            self.records.append((layout.topic, value, key, partition))
        else:
            self.records.append((layout.topic, value, key, partition, None, None, 0, headers))
        self.total += self.used
        if self.used > self.largest:
            self.largest = self.used
            self.largest_topic = layout.topic
        if kind == 68 and key is not None and layout.tombstones:
            self.records.append((layout.topic, None, key, partition))
            self.total += self.used - value_size
        self.index += 1
        return True

    cdef bint key_of(self, Layout layout, Cell* cells) except -1:
        cdef int i
        cdef Cell* cell
        cdef Col* col
        self.put(layout.key_frame)
        for i in range(layout.key_count):
            col = &layout.cols[layout.key[i]]
            cell = &cells[layout.key[i]]
            if cell.at == NULL_VALUE and col.branch:
                self.byte(0)
                continue
            if cell.at < 0:
                return False
            if col.branch:
                self.byte(2)
            self.need(<Py_ssize_t>cell.out_size)
            memcpy(self.buffer + self.used, self.buffer + cell.out, <size_t>cell.out_size)
            self.used += <Py_ssize_t>cell.out_size
        return True

    cdef list headers(self, Layout layout):
        cdef int i
        found = [str(layout.indexes[i]) for i in range(layout.count)
                 if self.cells[i].at == UNSENT and layout.cols[i].kind != K_SKIP]
        return [(self.unsent_header, ",".join(found).encode())]

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

    # -- values -----------------------------------------------------------------------------------------------------

    cdef int value(self, Layout layout, int i, cptr s, Py_ssize_t n, Cell* cell) except -1:
        """One value behind its branch byte; where its form is not known here, as the column's call encodes it."""
        cdef Col* col = &layout.cols[i]
        cdef Py_ssize_t start = self.used
        cdef uint8_t* o
        cdef bytes made
        if col.kind != K_CALL:
            self.need(n + 32)
            o = self.buffer + start
            if col.branch:
                o[0] = col.some
                o += 1
            cell.out = o - self.buffer
            o = self.native(col, o, s, n)
            if o != NULL:
                self.used = o - self.buffer
                cell.out_size = self.used - cell.out
                return 0
        made = layout.calls[i](PyBytes_FromStringAndSize(<char*>s, n))
        self.put(made)
        if col.branch and (not made or self.buffer[start] != col.some):
            # A null: right in a row, but not in a key.
            if col.in_key:
                raise ValueError("a key without a value")
        cell.out = start + col.branch
        cell.out_size = self.used - cell.out
        return 0

    cdef uint8_t* native(self, Col* col, uint8_t* o, cptr s, Py_ssize_t n) except? NULL:
        cdef int kind = col.kind
        cdef int64_t v = 0, w = 0
        cdef Py_ssize_t scale = 0
        cdef double d = 0
        cdef float f
        if kind == K_TEXT:
            return put_text(o, s, n)
        if kind == K_INT or kind == K_LONG:
            if not to_int(s, n, &v) or (kind == K_INT and v != <int32_t>v):
                return NULL
            return put_long(o, v)
        if kind == K_BOOLEAN:
            o[0] = n == 1 and s[0] == 116
            return o + 1
        if kind == K_DECIMAL:
            if not to_decimal(s, n, &v, &scale) or scale != col.arg:
                return NULL
            return put_unscaled(o, v)
        if kind == K_VARIABLE:
            if not to_decimal(s, n, &v, &scale):
                return NULL
            return put_unscaled(put_long(o, scale), v)
        if kind == K_TIMESTAMP:
            if n < 19 or s[10] != 32 or not to_days(s, &v) or not to_time(s + 11, n - 11, &w):
                return NULL
            return put_clock(o, v * 86400000000LL + w, col.arg)
        if kind == K_ZONED:
            return put_zoned(o, s, n)
        if kind == K_DATE:
            if n != 10 or not to_days(s, &v):
                return NULL
            return put_long(o, v)
        if kind == K_TIME:
            return put_clock(o, v, col.arg) if to_time(s, n, &v) else NULL
        if kind == K_HEX:
            return put_hex(o, s, n)
        if kind == K_DOUBLE or kind == K_FLOAT:
            if not to_double(s, n, &d):
                return NULL
            if kind == K_DOUBLE:
                memcpy(o, &d, 8)
                return o + 8
            f = <float>d
            if f - f != 0:
                return NULL
            memcpy(o, &f, 4)
            return o + 4
        if kind == K_DIGITS:
            return put_text(o, s, n) if n and (is_digit(s[n - 1])) else NULL
        return NULL

    # -- the buffer -------------------------------------------------------------------------------------------------

    cdef inline int need(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room
        cdef void* grown
        if self.room - self.used < more:
            room = 2 * (self.used + more) + 4096
            grown = realloc(self.buffer, <size_t>room)
            if grown == NULL:
                raise MemoryError
            self.buffer = <uint8_t*>grown
            self.room = room
        return 0

    cdef inline int byte(self, uint8_t value) except -1:
        self.need(1)
        self.buffer[self.used] = value
        self.used += 1
        return 0

    cdef inline int put(self, bytes data) except -1:
        cdef Py_ssize_t n = len(data)
        self.need(n)
        memcpy(self.buffer + self.used, PyBytes_AsString(data), <size_t>n)
        self.used += n
        return 0


cdef inline bint same(cptr m, Cell* one, Cell* other) noexcept nogil:
    if one.at < 0 or other.at < 0 or one.size != other.size:
        return False
    return memcmp(m + one.at, m + other.at, <size_t>one.size) == 0


cdef inline uint8_t* put_text(uint8_t* o, cptr s, Py_ssize_t n) noexcept nogil:
    if not is_utf8(s, n):
        return NULL
    o = put_long(o, n)
    memcpy(o, s, <size_t>n)
    return o + n


cdef inline uint8_t* put_clock(uint8_t* o, int64_t us, int unit) noexcept nogil:
    """`unit`: 0 microseconds, 1 milliseconds, 2 nanoseconds."""
    if unit == 1:
        return put_long(o, floor_div(us, 1000))
    if unit == 2:
        if us > 9223372036854775LL or us < -9223372036854775LL:
            return NULL
        return put_long(o, us * 1000)
    return put_long(o, us)


cdef uint8_t* put_zoned(uint8_t* o, cptr s, Py_ssize_t n) noexcept nogil:
    """`2024-02-29 12:34:56.789+00` with a T and a Z."""
    cdef int64_t unused = 0
    if n < 22 or n > 29 or s[10] != 32 or s[n - 3] != 43 or s[n - 2] != 48 or s[n - 1] != 48:
        return NULL
    if not to_days(s, &unused) or not to_time(s + 11, n - 14, &unused):
        return NULL
    o = put_long(o, n - 2)
    memcpy(o, s, <size_t>(n - 3))
    o[10] = 84
    o[n - 3] = 90
    return o + n - 2


cdef inline int nibble(uint8_t c) noexcept nogil:
    if c >= 48 and c <= 57:
        return c - 48
    if c >= 97 and c <= 102:
        return c - 87
    return -1


cdef uint8_t* put_hex(uint8_t* o, cptr s, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef int high, low
    if n < 2 or n & 1 or s[0] != 92 or s[1] != 120:
        return NULL
    o = put_long(o, (n - 2) >> 1)
    for i in range(2, n, 2):
        high, low = nibble(s[i]), nibble(s[i + 1])
        if high < 0 or low < 0:
            return NULL
        o[0] = <uint8_t>(high << 4 | low)
        o += 1
    return o
