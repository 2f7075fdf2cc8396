# Forms of values in texts of PostgreSQL. Nothing here reads outside of the bounds that it is given.

cdef inline bint to_days(cptr s, int64_t* out) noexcept nogil:
    """`YYYY-MM-DD` as days since 1970-01-01."""
    cdef int64_t year = 0, month = 0, day = 0
    if not to_date(s, &year, &month, &day) or year < 1:
        return False
    out[0] = days_of(year, month, day)
    return True


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
