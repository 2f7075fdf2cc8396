# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Walks a compiled plan over Avro record bodies and fills Arrow buffers; every read is checked against the record's end."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

# Kinds and the seven words of a node are written by decode.py in this order.
cdef enum:
    K_NULL = 0
    K_BOOLEAN = 1
    K_INT = 2
    K_LONG = 3
    K_FLOAT = 4
    K_DOUBLE = 5
    K_BYTES = 6
    K_STRING = 7
    K_FIXED = 8
    K_ENUM = 9
    K_RECORD = 10
    K_ARRAY = 11
    K_MAP = 12
    K_UNION = 13
    NODE_WORDS = 7
    DEPTH_MAX = 64
    EMPTY_ITEMS_MAX = 1000000
    MALFORMED = 1
    NO_MEMORY = 2
    TOO_LARGE = 3

cdef struct Node:
    int64_t kind
    int64_t nullable   # 0 no, 1 null is branch 0, 2 null is branch 1
    int64_t first      # index of the first child in `kids`
    int64_t count      # number of children
    int64_t size       # bytes of a fixed, symbols of an enum
    int64_t column     # output column, -1: read over
    int64_t capture    # 1: hand out the encoded bytes

cdef struct Column:
    int64_t width      # 0 variable, -1 validity only
    uint8_t* valid
    uint8_t* data
    int32_t* offsets
    int64_t used
    int64_t room

cdef struct Context:
    Node* nodes
    int64_t* kids
    Column* columns
    int status

ctypedef const uint8_t* cptr


cdef inline cptr varint(cptr p, cptr e, int64_t* out) noexcept nogil:
    cdef uint64_t value = 0, byte
    cdef int shift = 0
    while True:
        if p >= e or shift > 63:
            return NULL
        byte = p[0]
        p += 1
        if shift == 63 and byte > 1:
            return NULL
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    out[0] = <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
    return p


cdef inline int append(Context* c, Column* col, cptr p, int64_t size) noexcept nogil:
    cdef int64_t need = col.used + size, room
    cdef void* grown
    if need > 0x7FFFFFFF:
        c.status = TOO_LARGE
        return 0
    if need > col.room:
        room = col.room * 2
        if room < need:
            room = need + 64
        grown = realloc(col.data, <size_t>room)
        if grown == NULL:
            c.status = NO_MEMORY
            return 0
        col.data = <uint8_t*>grown
        col.room = room
    if size:
        memcpy(col.data + col.used, p, <size_t>size)
    col.used = need
    return 1


cdef cptr blocks(Context* c, Node* nd, cptr p, cptr e, int depth) noexcept nogil:
    cdef int64_t n, i, size
    cdef int64_t item = c.kids[nd.first]
    while True:
        p = varint(p, e, &n)
        if p == NULL or n == 0:
            return p
        if n < 0:
            p = varint(p, e, &size)
            if p == NULL or size < 0 or size > e - p:
                return NULL
            if n == INT64_MIN:
                return NULL
            n = -n
        if nd.kind == K_ARRAY and c.nodes[item].kind == K_NULL:
            if n > EMPTY_ITEMS_MAX:
                return NULL
            continue
        if n > e - p:
            return NULL
        for i in range(n):
            if nd.kind == K_MAP:
                p = varint(p, e, &size)
                if p == NULL or size < 0 or size > e - p:
                    return NULL
                p += size
            p = skip(c, item, p, e, depth + 1)
            if p == NULL:
                return NULL


cdef cptr skip_value(Context* c, Node* nd, cptr p, cptr e, int depth) noexcept nogil:
    """Reads over one value behind its nullable branch."""
    cdef int64_t x = 0, j
    cdef int64_t kind = nd.kind
    if kind == K_NULL:
        return p
    if kind == K_BOOLEAN:
        return p + 1 if p < e and p[0] < 2 else NULL
    if kind == K_INT or kind == K_LONG or kind == K_ENUM:
        p = varint(p, e, &x)
        if p == NULL or (kind == K_INT and x != <int32_t>x) or (kind == K_ENUM and (x < 0 or x >= nd.size)):
            return NULL
        return p
    if kind == K_FLOAT:
        return p + 4 if e - p >= 4 else NULL
    if kind == K_DOUBLE:
        return p + 8 if e - p >= 8 else NULL
    if kind == K_BYTES or kind == K_STRING:
        p = varint(p, e, &x)
        if p == NULL or x < 0 or x > e - p:
            return NULL
        return p + x
    if kind == K_FIXED:
        return p + nd.size if e - p >= nd.size else NULL
    if kind == K_RECORD:
        for j in range(nd.count):
            p = skip(c, c.kids[nd.first + j], p, e, depth + 1)
            if p == NULL:
                return NULL
        return p
    if kind == K_ARRAY or kind == K_MAP:
        return blocks(c, nd, p, e, depth)
    if kind == K_UNION:
        p = varint(p, e, &x)
        if p == NULL or x < 0 or x >= nd.count:
            return NULL
        return skip(c, c.kids[nd.first + x], p, e, depth + 1)
    return NULL


cdef inline cptr branch(Node* nd, cptr p, cptr e, int* null) noexcept nogil:
    cdef int64_t x = 0
    null[0] = 0
    p = varint(p, e, &x)
    if p == NULL or x < 0 or x > 1:
        return NULL
    null[0] = x == nd.nullable - 1
    return p


cdef cptr skip(Context* c, int64_t index, cptr p, cptr e, int depth) noexcept nogil:
    cdef Node* nd = &c.nodes[index]
    cdef int null
    if depth > DEPTH_MAX:
        return NULL
    if nd.nullable:
        p = branch(nd, p, e, &null)
        if p == NULL or null:
            return p
    return skip_value(c, nd, p, e, depth)


cdef cptr walk(Context* c, int64_t index, cptr p, cptr e, int64_t row, int depth) noexcept nogil:
    cdef Node* nd = &c.nodes[index]
    cdef Column* col
    cdef cptr q
    cdef int64_t x = 0, j, kind = nd.kind
    cdef int null
    if depth > DEPTH_MAX:
        return NULL
    if nd.nullable:
        p = branch(nd, p, e, &null)
        if p == NULL or null:
            return p
    if kind == K_RECORD and not nd.capture:
        if nd.column >= 0:
            c.columns[nd.column].valid[row] = 1
        for j in range(nd.count):
            p = walk(c, c.kids[nd.first + j], p, e, row, depth + 1)
            if p == NULL:
                return NULL
        return p
    if nd.column < 0:
        return skip_value(c, nd, p, e, depth)
    col = &c.columns[nd.column]
    if nd.capture:
        q = skip_value(c, nd, p, e, depth)
        if q == NULL or not append(c, col, p, q - p):
            return NULL
        col.valid[row] = 1
        return q
    if kind == K_LONG:
        p = varint(p, e, &x)
        if p == NULL:
            return NULL
        (<int64_t*>col.data)[row] = x
    elif kind == K_INT or kind == K_ENUM:
        p = varint(p, e, &x)
        if p == NULL or x != <int32_t>x or (kind == K_ENUM and (x < 0 or x >= nd.size)):
            return NULL
        (<int32_t*>col.data)[row] = <int32_t>x
    elif kind == K_STRING or kind == K_BYTES or kind == K_FIXED:
        x = nd.size
        if kind != K_FIXED:
            p = varint(p, e, &x)
        if p == NULL or x < 0 or x > e - p or not append(c, col, p, x):
            return NULL
        p += x
    elif kind == K_BOOLEAN:
        if p >= e or p[0] > 1:
            return NULL
        col.data[row] = p[0]
        p += 1
    elif kind == K_FLOAT:
        if e - p < 4:
            return NULL
        memcpy(col.data + 4 * row, p, 4)
        p += 4
    elif kind == K_DOUBLE:
        if e - p < 8:
            return NULL
        memcpy(col.data + 8 * row, p, 8)
        p += 8
    elif kind == K_NULL:
        return p
    else:
        return NULL
    col.valid[row] = 1
    return p


cdef int64_t run(Context* c, int64_t columns, const uint8_t* data, const int64_t* offsets, int64_t n, int64_t lead) noexcept nogil:
    cdef int64_t i, j
    cdef cptr p
    cdef cptr e
    for i in range(n):
        p = data + offsets[i] + lead
        e = data + offsets[i + 1]
        if p > e:
            c.status = MALFORMED
            return i
        p = walk(c, 0, p, e, i, 0)
        if p != e:
            if c.status == 0:
                c.status = MALFORMED
            return i
        for j in range(columns):
            if c.columns[j].width == 0:
                c.columns[j].offsets[i + 1] = <int32_t>c.columns[j].used
    return n


cdef bytes packed(const uint8_t* source, int64_t n):
    """One bit per byte, least significant first, as Arrow wants it."""
    out = PyBytes_FromStringAndSize(NULL, (n + 7) // 8)
    cdef uint8_t* target = <uint8_t*>PyBytes_AsString(out)
    cdef int64_t i
    memset(target, 0, <size_t>((n + 7) // 8))
    for i in range(n):
        if source[i]:
            target[i >> 3] |= <uint8_t>(1 << (i & 7))
    return out


cdef object column_out(Column* col, int64_t n):
    cdef int64_t i, nulls = 0
    for i in range(n):
        if not col.valid[i]:
            nulls += 1
    valid = packed(col.valid, n) if nulls else None
    if col.width == -1:
        return valid, None, None
    if col.width == 1:
        return valid, None, packed(col.data, n)
    if col.width == 0:
        ends = PyBytes_FromStringAndSize(<char*>col.offsets, (n + 1) * 4)
        return valid, ends, PyBytes_FromStringAndSize(<char*>col.data, col.used)
    return valid, None, PyBytes_FromStringAndSize(<char*>col.data, n * col.width)


cdef int plan_ok(Node* nodes, int64_t n, int64_t* kids, int64_t nkids, int64_t columns):
    cdef int64_t i
    for i in range(n):
        if nodes[i].first < 0 or nodes[i].count < 0 or nodes[i].first + nodes[i].count > nkids:
            return 0
        if nodes[i].column >= columns or nodes[i].size < 0:
            return 0
        if (nodes[i].kind == K_ARRAY or nodes[i].kind == K_MAP) and nodes[i].count != 1:
            return 0
    for i in range(nkids):
        if kids[i] < 0 or kids[i] >= n:
            return 0
    return n > 0


cdef int offsets_ok(const int64_t* offsets, int64_t n, int64_t size):
    cdef int64_t i
    for i in range(n):
        if offsets[i] < 0 or offsets[i + 1] < offsets[i]:
            return 0
    return n >= 0 and offsets[n] <= size


def decode(bytes nodes, bytes kids, bytes widths, object data, object offsets, int64_t lead):
    """Decode all bodies, `lead` bytes into each slice: (rows decoded, status, [(validity, offsets, data) per column]).

    On a status other than 0 the row count is the index of the offending row and no columns are returned.
    """
    cdef Py_buffer source
    cdef Py_buffer ends
    cdef Context c
    cdef int64_t n, done = 0, j, columns = len(widths) // 8
    cdef int64_t* width = <int64_t*>PyBytes_AsString(widths)
    cdef Column* col
    cdef int held = 0
    c.nodes = <Node*>PyBytes_AsString(nodes)
    c.kids = <int64_t*>PyBytes_AsString(kids)
    c.columns = NULL
    c.status = 0
    if not plan_ok(c.nodes, len(nodes) // (8 * NODE_WORDS), c.kids, len(kids) // 8, columns):
        raise ValueError("bad plan")
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(offsets, &ends, PyBUF_SIMPLE)
        held = 1
        n = ends.len // 8 - 1
        if lead < 0 or n < 0 or not offsets_ok(<const int64_t*>ends.buf, n, source.len):
            raise ValueError("bad offsets")
        c.columns = <Column*>calloc(<size_t>columns + 1, sizeof(Column))
        if c.columns == NULL:
            raise MemoryError
        for j in range(columns):
            col = &c.columns[j]
            col.width = width[j]
            col.valid = <uint8_t*>calloc(<size_t>n + 1, 1)
            if col.width == 0:
                col.offsets = <int32_t*>calloc(<size_t>n + 1, 4)
                col.room = 64
            elif col.width > 0:
                col.room = (n + 1) * col.width
            if col.room:
                col.data = <uint8_t*>calloc(<size_t>col.room, 1)
            if col.valid == NULL or (col.width == 0 and col.offsets == NULL) or (col.room and col.data == NULL):
                raise MemoryError
        with nogil:
            done = run(&c, columns, <const uint8_t*>source.buf, <const int64_t*>ends.buf, n, lead)
        if c.status == NO_MEMORY:
            raise MemoryError
        if c.status:
            return done, c.status, []
        return done, 0, [column_out(&c.columns[j], n) for j in range(columns)]
    finally:
        if c.columns != NULL:
            for j in range(columns):
                free(c.columns[j].valid)
                free(c.columns[j].data)
                free(c.columns[j].offsets)
            free(c.columns)
        if held:
            PyBuffer_Release(&ends)
        PyBuffer_Release(&source)


cdef int ends_ok(const int32_t* ends, int64_t n, int64_t size) noexcept nogil:
    cdef int64_t i
    for i in range(n):
        if ends[i] < 0 or ends[i + 1] < ends[i] or ends[i + 1] > size:
            return 0
    return n >= 0


def decimals(object data, object offsets):
    """Big-endian two's complement of up to 16 bytes each, as little-endian 128-bit integers; None: one is longer."""
    cdef Py_buffer source
    cdef Py_buffer ends
    cdef int64_t n, i, k, size = 0
    cdef int held = 0
    cdef const int32_t* at
    cdef const uint8_t* p
    cdef uint8_t* d
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(offsets, &ends, PyBUF_SIMPLE)
        held = 1
        n = ends.len // 4 - 1
        at = <const int32_t*>ends.buf
        if not ends_ok(at, n, source.len):
            raise ValueError("bad offsets")
        out = PyBytes_FromStringAndSize(NULL, n * 16)
        d = <uint8_t*>PyBytes_AsString(out)
        with nogil:
            for i in range(n):
                size = <int64_t>at[i + 1] - at[i]
                if size > 16:
                    break
                p = <const uint8_t*>source.buf + at[i]
                memset(d, 255 if size and p[0] & 128 else 0, 16)
                for k in range(size):
                    d[k] = p[size - 1 - k]
                d += 16
        return None if size > 16 else out
    finally:
        if held:
            PyBuffer_Release(&ends)
        PyBuffer_Release(&source)


def hexes(object data, object offsets):
    r"""The `\x…` text of each value: (offsets, data) of a string array; None: it does not fit in 32-bit offsets."""
    cdef Py_buffer source
    cdef Py_buffer ends
    cdef int64_t n, i, k, used = 0
    cdef int held = 0
    cdef const int32_t* at
    cdef const uint8_t* p
    cdef uint8_t* d
    cdef int32_t* o
    cdef const char* digits = "0123456789abcdef"
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(offsets, &ends, PyBUF_SIMPLE)
        held = 1
        n = ends.len // 4 - 1
        at = <const int32_t*>ends.buf
        if not ends_ok(at, n, source.len):
            raise ValueError("bad offsets")
        if n > 0:
            used = (<int64_t>at[n] - at[0]) * 2 + n * 2
        if used > 0x7FFFFFFF:
            return None
        out = PyBytes_FromStringAndSize(NULL, used)
        outends = PyBytes_FromStringAndSize(NULL, (n + 1) * 4)
        d = <uint8_t*>PyBytes_AsString(out)
        o = <int32_t*>PyBytes_AsString(outends)
        used = 0
        o[0] = 0
        p = <const uint8_t*>source.buf
        with nogil:
            for i in range(n):
                d[used] = 92
                d[used + 1] = 120
                used += 2
                for k in range(at[i], at[i + 1]):
                    d[used] = digits[p[k] >> 4]
                    d[used + 1] = digits[p[k] & 15]
                    used += 2
                o[i + 1] = <int32_t>used
        return outends, out
    finally:
        if held:
            PyBuffer_Release(&ends)
        PyBuffer_Release(&source)


cdef inline int64_t number(const uint8_t* p, int64_t digits) noexcept nogil:
    """Of decimal digits; -1: one is none."""
    cdef int64_t i, value = 0
    for i in range(digits):
        if p[i] < 48 or p[i] > 57:
            return -1
        value = value * 10 + p[i] - 48
    return value


cdef inline int64_t month_days(int64_t year, int64_t month) noexcept nogil:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


cdef int64_t instant(const uint8_t* p, int64_t size) noexcept nogil:
    """Microseconds since 1970 of `YYYY-MM-DDTHH:MM:SS[.f]Z`, up to six digits of a second's part; INT64_MIN: it is not so."""
    cdef int64_t year, month, day, hour, minute, second, part = 0, digits = 0, since
    if size < 20 or size == 21 or size > 27 or p[size - 1] != 90:
        return INT64_MIN
    if p[4] != 45 or p[7] != 45 or p[10] != 84 or p[13] != 58 or p[16] != 58:
        return INT64_MIN
    year, month, day = number(p, 4), number(p + 5, 2), number(p + 8, 2)
    hour, minute, second = number(p + 11, 2), number(p + 14, 2), number(p + 17, 2)
    if size > 20:
        digits = size - 21
        part = number(p + 20, digits) if p[19] == 46 else -1
    if year < 1 or month < 1 or month > 12 or day < 1 or day > month_days(year, month):
        return INT64_MIN
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59 or part < 0:
        return INT64_MIN
    while digits < 6:
        part *= 10
        digits += 1
    # A year that begins in March ends in the day that only some have.
    year -= month < 3
    month = month + 9 if month < 3 else month - 3
    since = year * 365 + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 719469
    return ((since * 24 + hour) * 60 + minute) * 60000000 + second * 1000000 + part


def instants(object data, object offsets, object valid):
    """ISO 8601 texts in UTC as microseconds, 0 where the bit in `valid` is not set; None: one of them is something else."""
    cdef Py_buffer source
    cdef Py_buffer ends
    cdef Py_buffer bits
    cdef int64_t n, i, found = 0
    cdef int held = 0
    cdef const int32_t* at
    cdef const uint8_t* mask = NULL
    cdef int64_t* out
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(offsets, &ends, PyBUF_SIMPLE)
        held = 1
        n = ends.len // 4 - 1
        at = <const int32_t*>ends.buf
        if valid is not None:
            PyObject_GetBuffer(valid, &bits, PyBUF_SIMPLE)
            held = 2
            mask = <const uint8_t*>bits.buf
        if not ends_ok(at, n, source.len) or (mask != NULL and bits.len * 8 < n):
            raise ValueError("bad offsets")
        numbers = PyBytes_FromStringAndSize(NULL, n * 8)
        out = <int64_t*>PyBytes_AsString(numbers)
        with nogil:
            for i in range(n):
                if mask != NULL and not mask[i >> 3] >> (i & 7) & 1:
                    out[i] = 0
                    continue
                found = instant(<const uint8_t*>source.buf + at[i], <int64_t>at[i + 1] - at[i])
                if found == INT64_MIN:
                    break
                out[i] = found
        return None if found == INT64_MIN else numbers
    finally:
        if held > 1:
            PyBuffer_Release(&bits)
        if held:
            PyBuffer_Release(&ends)
        PyBuffer_Release(&source)
