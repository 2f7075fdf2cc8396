# Forms of values in row images. Nothing here reads outside of the bounds that it is given.

# Kinds are named in native_layouts.py in this order.
cdef enum:
    K_TEXT = 2
    K_ASCII = 3
    K_CHAR = 4
    K_ASCII_CHAR = 5
    K_BYTES = 6
    K_PADDED = 7
    K_SIGNED = 8
    K_UNSIGNED = 9
    K_UNSIGNED_BYTES = 10
    K_YEAR = 11
    K_FLOAT = 12
    K_DOUBLE = 13
    K_FLOAT_DOUBLE = 14
    K_DECIMAL = 15
    K_DECIMAL_TEXT = 16
    K_DECIMAL_DOUBLE = 17
    K_BIT = 18
    K_BITS = 19
    K_DATE = 20
    K_DATETIME = 21
    K_TIMESTAMP = 22
    K_TIME = 23
    K_TIME_OF_DAY = 24
    K_MEMBER = 25
    K_UUID = 26
    KINDS = 27
    DIGITS_MAX = 18     # of decimals that are read here
    GROUP_DIGITS = 9
    DAY_MS = 86400000

cdef int* GROUP_BYTES = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
cdef uint32_t* GROUP_POWERS = [1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000]
cdef int* FRACTION_UNITS = [1000000, 10000, 100, 1]
cdef int* MONTH_DAYS = [0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


cdef inline uint64_t little(cptr p, Py_ssize_t n) noexcept nogil:
    """A number of at most 8 bytes, the lowest first."""
    cdef uint64_t v = 0
    cdef Py_ssize_t i
    for i in range(n):
        v |= <uint64_t>p[i] << (8 * i)
    return v


cdef inline uint64_t big(cptr p, Py_ssize_t n) noexcept nogil:
    """A number of at most 8 bytes, the highest first."""
    cdef uint64_t v = 0
    cdef Py_ssize_t i
    for i in range(n):
        v = v << 8 | p[i]
    return v


cdef inline bint is_ascii(cptr s, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i = 0
    cdef uint64_t eight
    while n - i >= 8:
        memcpy(&eight, s + i, 8)
        if eight & 0x8080808080808080ULL:
            return False
        i += 8
    while i < n:
        if s[i] & 128:
            return False
        i += 1
    return True


cdef inline bint is_day(int64_t year, int64_t month, int64_t day) noexcept nogil:
    """Whether there is such a day, from year 1 to 9999."""
    if year < 1 or year > 9999 or month < 1 or month > 12 or day < 1:
        return False
    if month == 2 and day == 29:
        return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return day <= MONTH_DAYS[month]


cdef inline uint8_t* put_digits(uint8_t* o, uint64_t v, int digits) noexcept nogil:
    """So many decimal digits, with zeros in front."""
    cdef int i
    for i in range(digits - 1, -1, -1):
        o[i] = <uint8_t>(48 + v % 10)
        v //= 10
    return o + digits


cdef bint from_groups(cptr s, Py_ssize_t n, int precision, int scale, int64_t* out) noexcept nogil:
    """The unscaled number of a decimal of at most 18 digits, which `n` bytes hold: groups of nine digits in four bytes."""
    cdef int whole = precision - scale
    cdef int group = whole % GROUP_DIGITS, left = whole // GROUP_DIGITS + scale // GROUP_DIGITS, tail = scale % GROUP_DIGITS
    cdef bint negative, first = True
    cdef int64_t v = 0
    cdef uint32_t part
    cdef int size, i
    cdef Py_ssize_t at = 0
    cdef int done
    negative = not s[0] & 128
    for done in range(-1, left + 1):
        if done < 0:
            size = GROUP_BYTES[group]
            i = group
        elif done < left:
            size, i = 4, GROUP_DIGITS
        else:
            size = GROUP_BYTES[tail]
            i = tail
        if not i:
            continue
        if at + size > n:
            return False
        part = 0
        while size:
            part = part << 8 | <uint8_t>(s[at] ^ (255 if negative else 0) ^ (128 if first else 0))
            first = False
            at += 1
            size -= 1
        if part >= GROUP_POWERS[i]:
            return False
        v = v * GROUP_POWERS[i] + part
    out[0] = -v if negative else v
    return at == n


cdef class BinaryWriter(Writer):
    """Writes values from their forms in row images, behind their lengths."""

    @cython.final
    cdef uint8_t* native(self, Layout layout, int i, uint8_t* o, cptr s, Py_ssize_t n) except? NULL:
        cdef Col* col = &layout.cols[i]
        cdef int kind = col.kind
        cdef int64_t v
        cdef float single
        cdef double d
        if kind == K_SIGNED:
            v = <int64_t>(little(s, n) << (64 - 8 * n))
            return put_long(o, v >> (64 - 8 * n))
        if kind == K_UNSIGNED:
            # Beyond 63 bits it is the negative number of the same bits, as Java has it.
            return put_long(o, <int64_t>little(s, n))
        if kind == K_TEXT:
            return put_text(o, s, n)
        if kind == K_CHAR or kind == K_ASCII_CHAR:
            while n and s[n - 1] == 32:
                n -= 1
            if kind == K_CHAR:
                return put_text(o, s, n)
            kind = K_ASCII
        if kind == K_ASCII:
            return put_bytes(o, s, n) if is_ascii(s, n) else NULL
        if kind == K_BYTES:
            return put_bytes(o, s, n)
        if kind == K_DATETIME:
            return put_datetime(o, s, n, col.arg)
        if kind == K_TIMESTAMP:
            return put_timestamp(o, s, n, col.arg)
        if kind == K_DATE:
            v = <int64_t>little(s, n)
            if not is_day(v >> 9, v >> 5 & 15, v & 31):
                return NULL
            return put_long(o, days_of(v >> 9, v >> 5 & 15, v & 31))
        if kind == K_DECIMAL or kind == K_DECIMAL_TEXT or kind == K_DECIMAL_DOUBLE:
            if not from_groups(s, n, col.arg >> 8, col.arg & 255, &v):
                return NULL
            return put_decimal(o, v, kind, col.arg & 255, not s[0] & 128)
        if kind == K_TIME or kind == K_TIME_OF_DAY:
            return put_span(o, s, n, kind == K_TIME_OF_DAY, col.arg)
        if kind == K_DOUBLE:
            memcpy(o, s, 8)
            return o + 8
        if kind == K_FLOAT:
            memcpy(o, s, 4)
            return o + 4
        if kind == K_FLOAT_DOUBLE:
            memcpy(&single, s, 4)
            d = single
            memcpy(o, &d, 8)
            return o + 8
        if kind == K_YEAR:
            return put_long(o, 1900 + s[0] if s[0] else 0)
        return self.rarer(layout, i, o, s, n)

    @cython.final
    cdef uint8_t* rarer(self, Layout layout, int i, uint8_t* o, cptr s, Py_ssize_t n) except? NULL:
        cdef Col* col = &layout.cols[i]
        cdef int kind = col.kind
        cdef uint64_t v
        cdef tuple texts
        cdef bytes found
        if kind == K_MEMBER:
            texts = <tuple?>layout.calls[i].texts
            v = little(s, n)
            if v >= <uint64_t>len(texts):
                return NULL
            found = <bytes?>texts[<Py_ssize_t>v]
            memcpy(o, PyBytes_AsString(found), <size_t>len(found))
            return o + len(found)
        if kind == K_UUID:
            return put_uuid(o, s, n)
        if kind == K_PADDED:
            if n > col.arg:
                return put_bytes(o, s, n)
            o = put_long(o, col.arg)
            memcpy(o, s, <size_t>n)
            memset(o + n, 0, <size_t>(col.arg - n))
            return o + col.arg
        if kind == K_UNSIGNED_BYTES:
            return put_unsigned(o, little(s, n))
        if kind == K_BIT or kind == K_BITS:
            v = big(s, n)
            if col.arg < 64 and v >> col.arg:
                return NULL
            if kind == K_BIT:
                o[0] = v != 0
                return o + 1
            return put_lowest_first(o, v, n)
        return NULL


cdef inline uint8_t* put_unsigned(uint8_t* o, uint64_t v) noexcept nogil:
    """The shortest bytes of a number without a sign, the highest first, behind their size."""
    cdef int at
    if v >> 63 == 0:
        return put_unscaled(o, <int64_t>v)
    o[0], o[1] = 18, 0
    for at in range(8):
        o[2 + at] = <uint8_t>(v >> (56 - 8 * at))
    return o + 10


cdef inline uint8_t* put_lowest_first(uint8_t* o, uint64_t v, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t at
    o = put_long(o, n)
    for at in range(n):
        o[at] = <uint8_t>(v >> (8 * at))
    return o + n


cdef inline uint8_t* put_bytes(uint8_t* o, cptr s, Py_ssize_t n) noexcept nogil:
    o = put_long(o, n)
    memcpy(o, s, <size_t>n)
    return o + n


cdef uint8_t* put_uuid(uint8_t* o, cptr s, Py_ssize_t n) noexcept nogil:
    """The 16 bytes as text; of zeros at the end the log has none."""
    cdef int i
    cdef uint8_t c
    if n > 16:
        return NULL
    o[0] = 72
    o += 1
    for i in range(16):
        c = s[i] if i < n else 0
        o[0], o[1] = hex_digit(c >> 4), hex_digit(c & 15)
        o += 2
        if i == 3 or i == 5 or i == 7 or i == 9:
            o[0] = 45
            o += 1
    return o


cdef inline uint8_t hex_digit(uint8_t c) noexcept nogil:
    return c + 48 if c < 10 else c + 87


cdef inline uint8_t* put_datetime(uint8_t* o, cptr s, Py_ssize_t n, int unit) noexcept nogil:
    cdef int64_t packed = <int64_t>big(s, 5) - (<int64_t>1 << 39)
    cdef int64_t days = packed >> 17, time = packed & 0x1FFFF
    cdef int64_t year = (days >> 5) // 13, month = (days >> 5) % 13, day = days & 31
    cdef int64_t hour = time >> 12, minute = time >> 6 & 63, second = time & 63
    cdef int64_t us = <int64_t>big(s + 5, n - 5) * FRACTION_UNITS[n - 5]
    if packed < 0 or not is_day(year, month, day) or hour > 23 or minute > 59 or second > 59 or us >= 1000000:
        return NULL
    us += ((days_of(year, month, day) * 24 + hour) * 60 + minute) * 60000000 + second * 1000000
    return put_clock(o, us, unit)


cdef inline uint8_t* put_span(uint8_t* o, cptr s, Py_ssize_t n, bint bounded, int unit) noexcept nogil:
    """A span of time of either sign. `bounded`: the nearest time of a day, in milliseconds."""
    cdef int bits = 8 * <int>(n - 3)
    cdef int64_t packed = <int64_t>big(s, n) - (<int64_t>0x800000 << bits)
    cdef int64_t size = -packed if packed < 0 else packed
    cdef int64_t time = size >> bits, us = (size & ((<int64_t>1 << bits) - 1)) * FRACTION_UNITS[n - 3]
    if time >> 12 > 838 or (time >> 6 & 63) > 59 or (time & 63) > 59 or us >= 1000000:
        return NULL
    us += (((time >> 12) * 60 + (time >> 6 & 63)) * 60 + (time & 63)) * 1000000
    return put_span_us(o, -us if packed < 0 else us, bounded, unit)


cdef inline uint8_t* put_span_us(uint8_t* o, int64_t us, bint bounded, int unit) noexcept nogil:
    if bounded:
        us = floor_div(us, 1000)
        return put_long(o, 0 if us < 0 else DAY_MS - 1 if us >= DAY_MS else us)
    return put_clock(o, us, unit)


cdef uint8_t* put_timestamp(uint8_t* o, cptr s, Py_ssize_t n, int digits) noexcept nogil:
    """`2024-02-29T12:34:56.789Z` with so many digits of a fraction."""
    cdef uint64_t seconds = big(s, 4), us = big(s + 4, n - 4) * <uint64_t>FRACTION_UNITS[n - 4]
    cdef uint64_t day, era, of_era, year, of_year, month
    if us >= 1000000 or (not seconds and not us):
        return NULL
    o = put_long(o, 20 + (digits + 1 if digits else 0))
    # The calendar counted from March on, in which a leap day is the last of its year.
    day = seconds // 86400 + 719468
    seconds %= 86400
    era = day // 146097
    of_era = day % 146097
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year += 400 * era + (1 if month <= 2 else 0)
    o = put_digits(o, year, 4)
    o[0] = 45
    o = put_digits(o + 1, month, 2)
    o[0] = 45
    o = put_digits(o + 1, day, 2)
    o[0] = 84
    o = put_digits(o + 1, seconds // 3600, 2)
    o[0] = 58
    o = put_digits(o + 1, seconds // 60 % 60, 2)
    o[0] = 58
    o = put_digits(o + 1, seconds % 60, 2)
    if digits:
        o[0] = 46
        put_digits(o + 1, us, 6)
        o += 1 + digits
    o[0] = 90
    return o + 1


cdef inline uint8_t* put_decimal(uint8_t* o, int64_t v, int kind, int scale, bint negative) noexcept nogil:
    """`negative`: the form has a sign, which a zero has not that a server writes."""
    if kind == K_DECIMAL:
        return put_unscaled(o, v)
    if not v and negative:
        return NULL
    return put_decimal_text(o, v, scale) if kind == K_DECIMAL_TEXT else put_decimal_double(o, v, scale)


cdef inline uint8_t* put_decimal_text(uint8_t* o, int64_t v, int scale) noexcept nogil:
    cdef uint8_t[DIGITS_MAX + 4] text
    cdef uint64_t left = <uint64_t>(-v if v < 0 else v)
    cdef int n = 0, i
    for i in range(scale):
        text[n] = <uint8_t>(48 + left % 10)
        left //= 10
        n += 1
    if scale:
        text[n] = 46
        n += 1
    while True:
        text[n] = <uint8_t>(48 + left % 10)
        left //= 10
        n += 1
        if not left:
            break
    if v < 0:
        text[n] = 45
        n += 1
    o = put_long(o, n)
    for i in range(n):
        o[i] = text[n - 1 - i]
    return o + n


cdef inline uint8_t* put_decimal_double(uint8_t* o, int64_t v, int scale) noexcept nogil:
    cdef double d
    if v >= <int64_t>1 << 53 or v <= -(<int64_t>1 << 53):
        return NULL
    d = <double>v / POWERS[scale]
    memcpy(o, &d, 8)
    return o + 8
