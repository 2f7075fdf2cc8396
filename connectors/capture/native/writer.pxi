# How rows of a table are written, and the collector of records.

cdef enum:
    K_SKIP = 0
    K_CALL = 1
    COLUMNS_MAX = 4096
    LONG_BYTES_MAX = 10
    ROOM = 32           # bytes that a value takes at most beyond those of its form in the database
    NULL_VALUE = -1
    UNSENT = -2
    SUB_MAX = 0x7FFFFFFF


cdef struct Col:
    int kind        # K_SKIP, K_CALL, or one of the database's own
    int arg
    int branch      # 1: one byte says whether there is a value
    uint8_t some
    uint8_t null
    int in_key
    int plain_key   # equal forms mean equal values
    Py_ssize_t room


cdef class Layout:
    """How one table's rows are written: columns, frames, where the records go. """

    cdef Col* cols
    cdef int count
    cdef int* key
    cdef int key_count
    cdef object topic
    cdef bytes key_frame
    cdef bytes value_frame
    cdef bytes names
    cdef list calls
    cdef list zeroes
    cdef list unsent
    cdef list indexes
    cdef uint32_t partitions
    cdef int64_t size_max
    cdef bint tombstones
    cdef bint ignored

    def __cinit__(self):
        self.cols = NULL
        self.key = NULL
        self.ignored = True

    def __init__(self, list columns=None, tuple key=(), tuple place=None):
        """`columns`: (kind, argument, branch byte of a value or None, plain as key, call, zero, unsent, index) each;
        `place`: topic, key frame, value frame, partitions, most bytes of a record, tombstones, names of the table.
        Without columns: the table's rows are counted only."""
        cdef int i
        if columns is None or place is None or self.cols != NULL:
            return
        if len(columns) > COLUMNS_MAX or len(key) > len(columns):
            raise ValueError("too many columns")
        self.count = <int>len(columns)
        self.key_count = <int>len(key)
        self.cols = <Col*>calloc(<size_t>self.count + 1, sizeof(Col))
        self.key = <int*>calloc(<size_t>self.key_count + 1, sizeof(int))
        if self.cols == NULL or self.key == NULL:
            raise MemoryError
        self.calls, self.zeroes, self.unsent, self.indexes = [], [], [], []
        for i in range(self.count):
            kind, arg, some, plain, call, zero, unsent, index = columns[i]
            if not 0 <= kind < KINDS:
                raise ValueError("unknown kind")
            self.cols[i].kind = kind
            self.cols[i].arg = arg
            self.cols[i].branch = some is not None
            self.cols[i].some = some or 0
            self.cols[i].null = 2 - self.cols[i].some
            self.cols[i].plain_key = bool(plain)
            self.cols[i].room = ROOM
            self.calls.append(call)
            self.zeroes.append(zero)
            self.unsent.append(unsent)
            self.indexes.append(index)
        for i in range(self.key_count):
            at = key[i]
            if not 0 <= at < self.count or self.cols[<int>at].kind == K_SKIP:
                raise ValueError("the key has no such column")
            self.key[i] = at
            self.cols[self.key[i]].in_key = 1
        self.topic, self.key_frame, self.value_frame, partitions, size_max, tombstones, self.names = place
        if partitions < 1:
            raise ValueError("a topic has partitions")
        self.partitions = partitions
        self.size_max = size_max
        self.tombstones = tombstones
        self.ignored = False

    def __dealloc__(self):
        free(self.cols)
        free(self.key)


cdef struct Cell:
    int64_t at       # in the message; NULL_VALUE, UNSENT
    int64_t size
    int64_t out      # where its encoded form begins, behind the branch byte
    int64_t out_size


cdef class Writer:
    """Collects records until `take`."""

    cdef uint8_t* buffer
    cdef Py_ssize_t used
    cdef Py_ssize_t room
    cdef Cell* cells
    cdef list records
    cdef Py_ssize_t total
    cdef Py_ssize_t largest
    cdef object largest_topic
    cdef str unsent_header
    cdef dict counts
    cdef Layout counting
    cdef Py_ssize_t counted

    def __cinit__(self, *args, **more):
        self.buffer = NULL
        self.room = 0
        self.cells = <Cell*>calloc(COLUMNS_MAX + 1, sizeof(Cell))
        if self.cells == NULL:
            raise MemoryError
        self.records = []
        self.largest_topic = ""
        self.counts = {}
        self.counting = None
        self.unsent_header = ""

    def __dealloc__(self):
        free(self.buffer)
        free(self.cells)

    def take(self):
        """What has been collected, or None: (records, bytes, bytes of the largest, its topic, records by topic)."""
        if not self.records:
            return None
        self.turn(None)
        out = (self.records, self.total, self.largest, self.largest_topic, self.counts)
        self.records, self.total, self.largest, self.largest_topic, self.counts = [], 0, 0, "", {}
        return out

    @cython.final
    cdef int turn(self, Layout layout) except -1:
        """Records are counted in runs of one layout."""
        if self.counted:
            self.counts[self.counting.topic] = self.counts.get(self.counting.topic, 0) + self.counted
        self.counting, self.counted = layout, 0
        return 0

    @cython.final
    cdef bint keep(self, Layout layout, Cell* keyed, list headers, bint tombstone) except -1:
        """The buffer holds a value, which becomes a record under the key of these cells. False: it cannot be one here."""
        cdef Py_ssize_t value_size = self.used, key_at, key_end
        cdef uint32_t partition = 0
        key = None
        if layout.key_count:
            key_at = self.used
            if not self.key_of(layout, keyed):
                return False
            key_end = self.used
            partition = (murmur2(self.buffer + key_at + len(layout.key_frame), key_end - key_at - len(layout.key_frame))
                         & 0x7FFFFFFF) % layout.partitions
            key = PyBytes_FromStringAndSize(<char*>self.buffer + key_at, key_end - key_at)
        if self.used > layout.size_max:
            return False
        value = PyBytes_FromStringAndSize(<char*>self.buffer, value_size)
        if headers is None:
            self.records.append((layout.topic, value, key, partition))
        else:
            self.records.append((layout.topic, value, key, partition, None, None, 0, headers))
        if layout is not self.counting:
            self.turn(layout)
        self.counted += 1
        self.total += self.used
        if self.used > self.largest:
            self.largest = self.used
            self.largest_topic = layout.topic
        if tombstone and key is not None and layout.tombstones:
            self.records.append((layout.topic, None, key, partition))
            self.counted += 1
            self.total += self.used - value_size
        return True

    @cython.final
    cdef bint read_row(self, Layout layout, cptr m, bytes source, bytes tail, int64_t sub) except -1:
        """A row that was read beside the stream, whose values lie where the cells say. `source`: what stands in front of `sub` in the
        source block; `tail`: what follows the transaction block. False: it is not written here."""
        if sub > SUB_MAX:
            return False
        self.used = 0
        self.put(layout.value_frame)
        self.byte(0)
        if not self.image(layout, m, self.cells, False):
            return False
        self.put(source)
        self.need(LONG_BYTES_MAX + 1)
        self.used = put_long(self.buffer + self.used, sub) - self.buffer
        self.byte(0)
        self.put(tail)
        return self.keep(layout, self.cells, None, False)

    @cython.final
    cdef list headers(self, Layout layout):
        """What names the columns whose values were not sent."""
        cdef int i
        found = [str(layout.indexes[i]) for i in range(layout.count)
                 if self.cells[i].at == UNSENT and layout.cols[i].kind != K_SKIP]
        return [(self.unsent_header, ",".join(found).encode())]

    @cython.final
    cdef bint image(self, Layout layout, cptr m, Cell* cells, bint is_before) except -1:
        """A row behind its branch byte. A value that is not there: null, in `before` else the zero of its type."""
        cdef int i
        cdef Col* col
        cdef Cell* cell
        self.byte(2)
        for i in range(layout.count):
            col = &layout.cols[i]
            if col.kind == K_SKIP:
                continue
            cell = &cells[i]
            if cell.at >= 0:
                self.value(layout, i, m + cell.at, <Py_ssize_t>cell.size, cell)
                continue
            found = None
            if cell.at == UNSENT:
                found = layout.unsent[i]
            elif col.branch:
                self.byte(col.null)
                continue
            elif is_before and not col.in_key:
                found = layout.zeroes[i]
            if found is None:
                return False
            self.put(<bytes>found)
        return True

    @cython.final
    cdef bint key_of(self, Layout layout, Cell* cells) except -1:
        cdef int i
        cdef Cell* cell
        cdef Col* col
        self.put(layout.key_frame)
        for i in range(layout.key_count):
            col = &layout.cols[layout.key[i]]
            cell = &cells[layout.key[i]]
            if cell.at == NULL_VALUE and col.branch:
                self.byte(0)
                continue
            if cell.at < 0:
                return False
            if col.branch:
                self.byte(2)
            self.need(<Py_ssize_t>cell.out_size)
            memcpy(self.buffer + self.used, self.buffer + cell.out, <size_t>cell.out_size)
            self.used += <Py_ssize_t>cell.out_size
        return True

    # -- values -----------------------------------------------------------------------------------------------------

    @cython.final
    cdef int value(self, Layout layout, int i, cptr s, Py_ssize_t n, Cell* cell) except -1:
        """One value behind its branch byte; where its form is not known here, as the column's call encodes it."""
        cdef Col* col = &layout.cols[i]
        cdef Py_ssize_t start = self.used
        cdef uint8_t* o
        cdef bytes made
        if col.kind != K_CALL:
            self.need(n + col.room)
            o = self.buffer + start
            if col.branch:
                o[0] = col.some
                o += 1
            cell.out = o - self.buffer
            o = self.native(layout, i, o, s, n)
            if o != NULL:
                self.used = o - self.buffer
                cell.out_size = self.used - cell.out
                return 0
        made = layout.calls[i](PyBytes_FromStringAndSize(<char*>s, n))
        self.put(made)
        if col.branch and (not made or self.buffer[start] != col.some):
            # A null: right in a row, but not in a key.
            if col.in_key:
                raise ValueError("a key without a value")
        cell.out = start + col.branch
        cell.out_size = self.used - cell.out
        return 0

    cdef uint8_t* native(self, Layout layout, int i, uint8_t* o, cptr s, Py_ssize_t n) except? NULL:
        """Writes a value from its form in the database, and returns where it ends; NULL: it is the column's call that does."""
        return NULL

    # -- the buffer -------------------------------------------------------------------------------------------------

    @cython.final
    cdef inline int need(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room
        cdef void* grown
        if self.room - self.used < more:
            room = 2 * (self.used + more) + 4096
            grown = realloc(self.buffer, <size_t>room)
            if grown == NULL:
                raise MemoryError
            self.buffer = <uint8_t*>grown
            self.room = room
        return 0

    @cython.final
    cdef inline int byte(self, uint8_t value) except -1:
        self.need(1)
        self.buffer[self.used] = value
        self.used += 1
        return 0

    @cython.final
    cdef inline int put(self, bytes data) except -1:
        cdef Py_ssize_t n = len(data)
        self.need(n)
        memcpy(self.buffer + self.used, PyBytes_AsString(data), <size_t>n)
        self.used += n
        return 0


cdef inline bint same(cptr m, Cell* one, Cell* other) noexcept nogil:
    if one.at < 0 or other.at < 0 or one.size != other.size:
        return False
    return memcmp(m + one.at, m + other.at, <size_t>one.size) == 0
