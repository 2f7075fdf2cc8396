# Text forms of values. Nothing here reads outside of the bounds that it is given.

cdef inline int two(cptr p) noexcept nogil:
    """Two digits as a number, -1 when they are none."""
    if not is_digit(p[0]) or not is_digit(p[1]):
        return -1
    return (p[0] - 48) * 10 + p[1] - 48


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
    out[0] = days_of(year, month, day)
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


cdef class TextWriter(Writer):
    """Writes values from their text forms."""

    @cython.final
    cdef uint8_t* native(self, Layout layout, int i, uint8_t* o, cptr s, Py_ssize_t n) except? NULL:
        cdef Col* col = &layout.cols[i]
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
            return put_zoned(o, s, n, col.arg)
        if kind == K_DATE:
            if n != 10 or not to_days(s, &v):
                return NULL
            return put_long(o, v)
        if kind == K_TIME:
            # Midnight at the end of a day is no time of a day to readers: the parser knows what becomes of it.
            return put_clock(o, v, col.arg) if to_time(s, n, &v) and v < 86400000000LL else NULL
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
