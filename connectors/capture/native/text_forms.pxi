# Text forms of values. Nothing here reads outside of the bounds that it is given.

cdef extern from "Python.h":
    double PyOS_string_to_double(const char* s, char** endptr, void* overflow) except? -1.0

cdef enum:
    DECIMAL_DIGITS_MAX = 18
    NUMBER_CHARS_MAX = 64


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


cdef inline bint to_date(cptr s, int64_t* year, int64_t* month, int64_t* day) noexcept nogil:
    """The numbers of `YYYY-MM-DD`, whether or not there is such a day."""
    cdef int64_t century = two(s), rest = two(s + 2)
    month[0], day[0] = two(s + 5), two(s + 8)
    year[0] = century * 100 + rest
    return century >= 0 and rest >= 0 and month[0] >= 0 and day[0] >= 0 and s[4] == 45 and s[7] == 45


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
