# Rows of COPY's text format, in the frames in which the server sends them.


def walk(object data, Py_ssize_t start, Py_ssize_t end):
    """Whole frames of rows from `start` on: the offset behind them, how many, where the last one begins (-1: none)."""
    cdef Py_buffer view
    cdef cptr p
    cdef Py_ssize_t size, count = 0, last = -1
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or end > view.len or start > end:
            raise ValueError("offsets outside the buffer")
        while end - start >= FRAME_HEADER:
            p = <cptr>view.buf + start
            size = be32(p + 1)
            if p[0] != COPY_DATA or size < 4 or size > end - start - 1:
                break
            last = start
            start += size + 1
            count += 1
        return start, count, last
    finally:
        PyBuffer_Release(&view)


cdef class Copied(TextWriter):
    """Writes rows as they were read, one by one behind the other."""

    cdef uint8_t* line
    cdef Py_ssize_t line_room

    def __cinit__(self, *args, **more):
        self.line = NULL
        self.line_room = 0

    def __dealloc__(self):
        free(self.line)

    def write(self, object data, Py_ssize_t start, Py_ssize_t end, Layout layout, tuple around, int64_t sub):
        """Frames between two offsets: returns the offset of the first one that is not done here, and the next `sub`.
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
            while end - start >= FRAME_HEADER:
                p = <cptr>view.buf + start
                size = be32(p + 1)
                if size < 4 or size > end - start - 1:
                    break
                if p[0] == COPY_DATA:
                    if not self.tried(layout, p + FRAME_HEADER, size - 4, source, tail, sub):
                        break
                    sub += 1
                elif p[0] != GONE:
                    break
                start += size + 1
            return start, sub
        finally:
            PyBuffer_Release(&view)

    cdef bint tried(self, Layout layout, cptr m, Py_ssize_t size, bytes source, bytes tail, int64_t sub) except -1:
        try:
            return self.row(layout, m, size, source, tail, sub)
        except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError):
            # The parsers in Python meet the same and name the place.
            return False

    cdef bint row(self, Layout layout, cptr m, Py_ssize_t size, bytes source, bytes tail, int64_t sub) except -1:
        if size < 1 or m[size - 1] != 10:
            return False
        size -= 1
        if memchr(m, 92, <size_t>size) == NULL:
            if not self.split(layout, m, size):
                return False
        else:
            if not self.unescaped(layout, m, size):
                return False
            m = self.line
        return self.read_row(layout, m, source, tail, sub)

    cdef bint split(self, Layout layout, cptr m, Py_ssize_t size) except -1:
        """Where the fields lie; False when there are more or fewer than columns."""
        cdef Py_ssize_t at = 0, stop
        cdef const void* tab
        cdef int i
        for i in range(layout.count):
            if layout.cols[i].kind == K_SKIP:
                continue
            if at > size:
                return False
            tab = memchr(m + at, 9, <size_t>(size - at))
            stop = size if tab == NULL else <cptr>tab - m
            self.cells[i].at = at
            self.cells[i].size = stop - at
            at = stop + 1
        return at == size + 1

    cdef bint unescaped(self, Layout layout, cptr m, Py_ssize_t size) except -1:
        """As `split`, of the line without its escapes, which is then in `line`."""
        cdef Py_ssize_t at = 0, start, used = 0
        cdef uint8_t c
        cdef uint8_t* o
        cdef int i
        if size > self.line_room:
            o = <uint8_t*>realloc(self.line, <size_t>(2 * size))
            if o == NULL:
                raise MemoryError
            self.line, self.line_room = o, 2 * size
        o = self.line
        for i in range(layout.count):
            if layout.cols[i].kind == K_SKIP:
                continue
            if at > size:
                return False
            self.cells[i].at = used
            start = at
            while at < size and m[at] != 9:
                c = m[at]
                at += 1
                if c == 92 and at < size and m[at] != 9:
                    c = plain(m[at])
                    at += 1
                o[used] = c
                used += 1
            if at - start == 2 and m[start] == 92 and m[start + 1] == 78:
                self.cells[i].at = NULL_VALUE
                used -= 1
            else:
                self.cells[i].size = used - self.cells[i].at
            at += 1
        return at == size + 1


cdef inline uint8_t plain(uint8_t c) noexcept nogil:
    """What an escaped character stands for."""
    if c == 98:
        return 8
    if c == 102:
        return 12
    if c == 110:
        return 10
    if c == 114:
        return 13
    if c == 116:
        return 9
    if c == 118:
        return 11
    return c
