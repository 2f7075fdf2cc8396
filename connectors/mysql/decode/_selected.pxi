# Rows of a SELECT in the text protocol, in the packets in which the server sends them.

cdef enum:
    ROW_GONE = 1            # in the place of a packet's number: the row is not handed on
    NULL_LENGTH = 251
    END_LENGTH = 254
    ERROR_LENGTH = 255
    END_BYTES = 9           # a packet that begins with 254 and is shorter ends the rows
    LONG_DIGITS_MAX = 20
    # Forms of a key's values are named in selected_rows.py in this order.
    KEY_NUMBER = 0
    KEY_TEXT = 1
    KEY_BYTES = 2

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char* s, Py_ssize_t size, const char* errors)


def walk_rows(object data, Py_ssize_t start, Py_ssize_t end, int sequence):
    """Whole rows from `start` on, the first of which has this number: the offset behind them, how many, where the last one begins (-1:
    none), and the number that comes next. The packets' own numbers become 0."""
    cdef Py_buffer view
    cdef uint8_t* p
    cdef Py_ssize_t size, at, count = 0, last = -1
    PyObject_GetBuffer(data, &view, PyBUF_WRITABLE)
    try:
        if start < 0 or end > view.len or start > end:
            raise ValueError("offsets outside the buffer")
        while True:
            p = <uint8_t*>view.buf + start
            size = row_size(p, end - start, &sequence)
            if not size:
                return start, count, last, sequence
            at = 0
            while at < size:
                p[at + 3] = 0
                at += PACKET_HEAD + <Py_ssize_t>little(p + at, 3)
            last = start
            start += size
            count += 1
    finally:
        PyBuffer_Release(&view)


cdef Py_ssize_t row_size(cptr p, Py_ssize_t left, int* sequence) noexcept nogil:
    """The bytes of the packets of a row; 0 where it is not whole, or no row."""
    cdef Py_ssize_t at = 0, size
    cdef int number = sequence[0]
    if left <= PACKET_HEAD:
        return 0
    size = <Py_ssize_t>little(p, 3)
    if not size or p[PACKET_HEAD] == ERROR_LENGTH or (p[PACKET_HEAD] == END_LENGTH and size < END_BYTES):
        return 0
    while True:
        if left - at < PACKET_HEAD:
            return 0
        size = <Py_ssize_t>little(p + at, 3)
        if size > left - at - PACKET_HEAD or p[at + 3] != number & 255:
            return 0
        number = (number + 1) & 255
        at += PACKET_HEAD + size
        # One of the greatest size goes on in the next one.
        if size != PACKET_BYTES_MAX:
            sequence[0] = number
            return at


cdef inline Py_ssize_t value_at(cptr p, Py_ssize_t left, int64_t* size) noexcept nogil:
    """The bytes of the length in front of a value, 0 where it is cut short; `size`: the value's own bytes, or NULL_VALUE."""
    cdef Py_ssize_t width
    if left < 1:
        return 0
    size[0] = p[0]
    if p[0] < NULL_LENGTH:
        return 1 if size[0] < left else 0
    if p[0] == NULL_LENGTH:
        size[0] = NULL_VALUE
        return 1
    if p[0] == ERROR_LENGTH:
        return 0
    width = 8 if p[0] == END_LENGTH else p[0] - 250
    if left < 1 + width:
        return 0
    size[0] = <int64_t>little(p + 1, width)
    return 1 + width if 0 <= size[0] <= left - 1 - width else 0


cdef inline bint to_long(cptr s, Py_ssize_t n, uint64_t* out, bint* negative) noexcept nogil:
    """`-?[0-9]{1,20}` as its size and its sign; False for one of more than 64 bits."""
    cdef uint64_t v = 0, digit
    cdef Py_ssize_t i
    negative[0] = n > 0 and s[0] == 45
    i = 1 if negative[0] else 0
    if n - i < 1 or n - i > LONG_DIGITS_MAX:
        return False
    while i < n:
        if not is_digit(s[i]):
            return False
        digit = s[i] - 48
        if v > (<uint64_t>0xFFFFFFFFFFFFFFFF - digit) // 10:
            return False
        v = v * 10 + digit
        i += 1
    out[0] = v
    return True


def keyed(object data, Py_ssize_t start, Py_ssize_t end, tuple key):
    """Where the rows that are left begin, each by a tuple of its key's values, of which later rows count. `key`: columns in the order of
    their places, each with its form and its place in the tuple. None where a row has another value, or is none."""
    cdef Py_buffer view
    cdef cptr p
    cdef Py_ssize_t size
    cdef dict found = {}
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or end > view.len or start > end:
            raise ValueError("offsets outside the buffer")
        while end - start >= PACKET_HEAD:
            p = <cptr>view.buf + start
            size = <Py_ssize_t>little(p, 3)
            if size == PACKET_BYTES_MAX or size > end - start - PACKET_HEAD:
                return None
            if p[3] != ROW_GONE:
                values = key_at(p + PACKET_HEAD, size, key)
                if values is None:
                    return None
                found[values] = start
            start += PACKET_HEAD + size
        return found
    finally:
        PyBuffer_Release(&view)


cdef tuple key_at(cptr p, Py_ssize_t size, tuple key):
    """The values of a row's key, None where one is not read here."""
    cdef Py_ssize_t at = 0, width, column = -1
    cdef int64_t length = 0
    cdef list values = [None] * len(key)
    for wanted, form, place in key:
        while column < <Py_ssize_t>wanted:
            if length > 0:
                at += <Py_ssize_t>length
            width = value_at(p + at, size - at, &length)
            if not width:
                return None
            at += width
            column += 1
        value = None if length < 0 else key_value(p + at, <Py_ssize_t>length, form)
        if value is None:
            return None
        values[place] = value
    return tuple(values)


cdef object key_value(cptr s, Py_ssize_t n, int form):
    cdef uint64_t v = 0
    cdef bint negative = False
    if form == KEY_BYTES:
        return PyBytes_FromStringAndSize(<const char*>s, n)
    if form == KEY_TEXT:
        return PyUnicode_DecodeUTF8(<const char*>s, n, NULL) if is_utf8(s, n) else None
    if not to_long(s, n, &v, &negative) or v >> 63:
        return None
    return -<int64_t>v if negative else <int64_t>v


cdef class Selected(Writer):
    """Writes rows as they were read, one by one behind the other. Kinds of values are those of row images, in the forms of texts."""

    def write(self, object data, Py_ssize_t start, Py_ssize_t end, Layout layout, tuple around, int64_t sub):
        """Rows between two offsets: returns the offset of the first one that is not done here, and the next `sub`.
        `around`: what stands in front of `sub` in the source block, and what follows the transaction block."""
        cdef Py_buffer view
        cdef cptr p
        cdef Py_ssize_t size
        cdef bytes source, tail
        source, tail = around
        if layout.ignored:
            raise ValueError("a layout without columns")
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if start < 0 or end > view.len or start > end:
                raise ValueError("offsets outside the buffer")
            while end - start >= PACKET_HEAD:
                p = <cptr>view.buf + start
                size = <Py_ssize_t>little(p, 3)
                if size == PACKET_BYTES_MAX or size > end - start - PACKET_HEAD:
                    break
                if p[3] != ROW_GONE:
                    if not self.tried(layout, p + PACKET_HEAD, size, source, tail, sub):
                        break
                    sub += 1
                start += PACKET_HEAD + size
            return start, sub
        finally:
            PyBuffer_Release(&view)

    cdef bint tried(self, Layout layout, cptr m, Py_ssize_t size, bytes source, bytes tail, int64_t sub) except -1:
        if not self.split(layout, m, size):
            return False
        try:
            return self.read_row(layout, m, source, tail, sub)
        except Exception:
            # The parsers in Python meet the same and name the place.
            return False

    cdef bint split(self, Layout layout, cptr m, Py_ssize_t size) noexcept:
        """Where the values lie; False when there are more or fewer than columns."""
        cdef Py_ssize_t at = 0, width
        cdef int64_t length = 0
        cdef int i
        for i in range(layout.count):
            width = value_at(m + at, size - at, &length)
            if not width:
                return False
            at += width
            if length == NULL_VALUE:
                self.cells[i].at = NULL_VALUE
                continue
            self.cells[i].at = at
            self.cells[i].size = length
            at += <Py_ssize_t>length
        return at == size

    @cython.final
    cdef uint8_t* native(self, Layout layout, int i, uint8_t* o, cptr s, Py_ssize_t n) except? NULL:
        cdef Col* col = &layout.cols[i]
        cdef int kind = col.kind
        cdef uint64_t v = 0
        cdef int64_t w = 0
        cdef Py_ssize_t scale = 0
        cdef bint negative = False
        if kind == K_TEXT:
            return put_text(o, s, n)
        if kind == K_BYTES:
            return put_bytes(o, s, n)
        if kind == K_SIGNED or kind == K_UNSIGNED or kind == K_YEAR:
            if not to_long(s, n, &v, &negative) or (kind != K_UNSIGNED and v >> 63):
                return NULL
            return put_long(o, -<int64_t>v if negative else <int64_t>v)
        if kind == K_DATETIME:
            return put_clock(o, w, col.arg) if to_moment(s, n, &w) else NULL
        if kind == K_TIMESTAMP:
            return put_stamp(o, s, n, col.arg)
        if kind == K_DATE:
            return put_long(o, w) if n == 10 and to_day(s, &w) else NULL
        if kind == K_DECIMAL or kind == K_DECIMAL_TEXT or kind == K_DECIMAL_DOUBLE:
            if not to_decimal(s, n, &w, &scale) or scale != col.arg & 255:
                return NULL
            return put_decimal(o, w, kind, col.arg & 255, s[0] == 45)
        if kind == K_TIME or kind == K_TIME_OF_DAY:
            return put_span_us(o, w, kind == K_TIME_OF_DAY, col.arg) if to_span(s, n, &w) else NULL
        return self.rarer(col, o, s, n)

    @cython.final
    cdef uint8_t* rarer(self, Col* col, uint8_t* o, cptr s, Py_ssize_t n) except? NULL:
        cdef uint64_t v = 0
        cdef double d = 0
        cdef float single
        cdef bint negative = False
        if col.kind == K_DOUBLE or col.kind == K_FLOAT_DOUBLE or col.kind == K_FLOAT:
            if not to_double(s, n, &d):
                return NULL
            if col.kind != K_FLOAT:
                memcpy(o, &d, 8)
                return o + 8
            single = <float>d
            if single - single != 0:
                return NULL
            memcpy(o, &single, 4)
            return o + 4
        if not to_long(s, n, &v, &negative) or negative:
            return NULL
        if col.kind == K_UNSIGNED_BYTES:
            return put_unsigned(o, v)
        if (col.kind == K_BIT or col.kind == K_BITS) and (col.arg >= 64 or not v >> col.arg):
            if col.kind == K_BITS:
                return put_lowest_first(o, v, (col.arg + 7) // 8)
            o[0] = v != 0
            return o + 1
        return NULL


cdef inline bint to_day(cptr s, int64_t* days) noexcept nogil:
    """`YYYY-MM-DD` as days since 1970-01-01; False where there is no such day."""
    cdef int64_t year = 0, month = 0, day = 0
    if not to_date(s, &year, &month, &day) or not is_day(year, month, day):
        return False
    days[0] = days_of(year, month, day)
    return True


cdef inline bint to_moment(cptr s, Py_ssize_t n, int64_t* us) noexcept nogil:
    """A day, a blank and a time of the day, in microseconds since 1970."""
    cdef int64_t days = 0, time = 0
    if n < 19 or s[10] != 32 or not to_day(s, &days) or not to_time(s + 11, n - 11, &time):
        return False
    if time >= 86400000000LL or s[14] > 53 or s[17] > 53:
        return False
    us[0] = days * 86400000000LL + time
    return True


cdef inline bint to_span(cptr s, Py_ssize_t n, int64_t* us) noexcept nogil:
    """`-?H+:MM:SS` of two or three digits of hours, and up to six digits after a point, in microseconds."""
    cdef bint negative = n > 0 and s[0] == 45
    cdef int64_t hundreds = 0
    if negative:
        s += 1
        n -= 1
    if n > 8 and s[3] == 58:
        if not is_digit(s[0]):
            return False
        hundreds = s[0] - 48
        s += 1
        n -= 1
    if not to_time(s, n, us) or s[3] > 53 or s[6] > 53:
        return False
    us[0] += hundreds * 360000000000LL
    if us[0] >= 3020400000000LL:
        # Of 839 hours: no server has it.
        return False
    if negative:
        us[0] = -us[0]
    return True


cdef inline uint8_t* put_stamp(uint8_t* o, cptr s, Py_ssize_t n, int digits) noexcept nogil:
    """`2024-02-29 12:34:56.789` with a T and a Z; it has so many digits of a fraction."""
    cdef int64_t unused = 0
    if n != (20 + digits if digits else 19) or not to_moment(s, n, &unused):
        return NULL
    o = put_long(o, n + 1)
    memcpy(o, s, <size_t>n)
    o[10] = 84
    o[n] = 90
    return o + n + 1
