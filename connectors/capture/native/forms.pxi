# Values in Avro's encoding. Nothing here reads outside of the bounds that it is given.

cimport cython

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset

ctypedef const uint8_t* cptr

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


cdef inline int64_t days_of(int64_t year, int64_t month, int64_t day) noexcept nogil:
    """The days since 1970-01-01 of a date from year 1 on."""
    if month <= 2:
        year -= 1
        month += 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719469


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
