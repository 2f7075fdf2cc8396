# Text forms of values and their Avro encoding. Nothing here reads outside of the bounds that it is given.

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


cdef uint8_t* put_zoned(uint8_t* o, cptr s, Py_ssize_t n, int digits) noexcept nogil:
    """`2024-02-29 12:34:56.789+00` with a T, a Z and a fraction of so many digits; below 0: as it is."""
    cdef int64_t unused = 0
    cdef Py_ssize_t whole = n - 3
    if n < 22 or n > 29 or s[10] != 32 or s[n - 3] != 43 or s[n - 2] != 48 or s[n - 1] != 48:
        return NULL
    if not to_days(s, &unused) or not to_time(s + 11, n - 14, &unused):
        return NULL
    if digits > 0:
        whole = 20 + digits
    elif digits == 0:
        whole = 19
    if n - 3 > whole:
        return NULL
    o = put_long(o, whole + 1)
    memcpy(o, s, <size_t>(n - 3))
    o[10] = 84
    if n - 3 < whole:
        if n == 22:
            o[19] = 46
            n += 1
        memset(o + n - 3, 48, <size_t>(whole - n + 3))
    o[whole] = 90
    return o + whole + 1


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
