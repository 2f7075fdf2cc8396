# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Breaks messages a million times in a few seconds, each in memory of exactly its size, so that a sanitizer sees the first
byte that is read behind its end."""

from cpython.buffer cimport PyBUF_READ
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove

cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char* memory, Py_ssize_t size, int flags)

cdef enum:
    CHANGES_MAX = 3
    PIECE_MAX = 32      # the longest word, and the longest piece that is cut out or copied from elsewhere
    SIZE_MAX_ = 4096
    HEAD_TOO = 16       # one of so many is broken anywhere, its head as well


cdef inline uint64_t turn(uint64_t* state) noexcept nogil:
    """xorshift64*"""
    cdef uint64_t x = state[0]
    x ^= x >> 12
    x ^= x << 25
    x ^= x >> 27
    state[0] = x
    return (x * 0x2545F4914F6CDD1DULL) >> 16


cdef Py_ssize_t broken(uint8_t* o, Py_ssize_t size, Py_ssize_t head, list samples, list words, uint64_t* state):
    cdef Py_ssize_t at, n, start
    cdef int what, number
    cdef const uint8_t* p
    cdef bytes piece
    for number in range(1 + <int>(turn(state) % CHANGES_MAX)):
        if head > size:
            break
        at = head + <Py_ssize_t>(turn(state) % <uint64_t>(size - head + 1))
        what = <int>(turn(state) % 8)
        if what == 0 and at < size:
            o[at] = <uint8_t>turn(state)
        elif what == 1 and at < size:
            o[at] ^= <uint8_t>(1 << (turn(state) % 8))
        elif what == 2:
            n = min(size - at, 1 + <Py_ssize_t>(turn(state) % 8))
            memmove(o + at, o + at + n, <size_t>(size - at - n))
            size -= n
        elif what == 3:
            size = at
        else:
            # A word, or what stands at the same place of another sample: put in between, or over what is there.
            if what < 6:
                piece = words[turn(state) % <uint64_t>len(words)]
                start, n = 0, len(piece)
            else:
                piece = samples[turn(state) % <uint64_t>len(samples)]
                start = min(at, <Py_ssize_t>len(piece))
                n = min(<Py_ssize_t>len(piece) - start, 1 + <Py_ssize_t>(turn(state) % PIECE_MAX))
            p = <const uint8_t*><const char*>piece + start
            if what % 2:
                memmove(o + at + n, o + at, <size_t>(size - at))
                size += n
            elif at + n > size:
                size = at + n
            memcpy(o + at, p, <size_t>n)
    return size


def shake(take, then, list samples, list words, Py_ssize_t head, uint64_t count, uint64_t seed):
    """`take(view)` for each of `count` broken samples, `then()` now and again; how many it said yes to.

    The first `head` bytes are broken more seldom."""
    cdef uint64_t state = seed * 2 + 1, number
    cdef uint8_t* scratch
    cdef uint8_t* exact
    cdef Py_ssize_t size
    cdef uint64_t taken = 0
    cdef bytes sample
    if not samples or not words or max(map(len, samples)) > SIZE_MAX_ or max(map(len, words)) > PIECE_MAX:
        raise ValueError("samples and words have a limit")
    scratch = <uint8_t*>malloc(SIZE_MAX_ + CHANGES_MAX * PIECE_MAX)
    if scratch == NULL:
        raise MemoryError
    try:
        for number in range(count):
            sample = samples[turn(&state) % <uint64_t>len(samples)]
            size = len(sample)
            memcpy(scratch, <const char*>sample, <size_t>size)
            size = broken(scratch, size, 0 if turn(&state) % HEAD_TOO == 0 else head, samples, words, &state)
            exact = <uint8_t*>malloc(<size_t>size)
            if exact == NULL and size:
                raise MemoryError
            memcpy(exact, scratch, <size_t>size)
            view = PyMemoryView_FromMemory(<char*>exact, size, PyBUF_READ)
            try:
                if take(view):
                    taken += 1
            finally:
                # Whoever still held it would read what is gone, which a sanitizer sees as well.
                del view
                free(exact)
            if number % 1024 == 1023:
                then()
        return taken
    finally:
        free(scratch)
