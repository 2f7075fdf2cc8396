# Packets of the log's stream: the common events of transactions, one after the other, as they lie in the buffer of the socket.

cdef enum:
    PACKET_HEAD = 4
    PACKET_BYTES_MAX = 0xFFFFFF
    EVENT_HEAD = 19
    CHECKSUM_BYTES = 4
    TABLE_ID_BYTES = 6
    STATEMENT_TABLES = 64
    TABLES_MAX = 4096
    ARTIFICIAL = 0x20
    END_OF_STATEMENT = 1
    STANDALONE_OR_XA = 0xC1
    GROUPED = 2
    E_QUERY = 2
    E_XID = 16
    E_TABLE_MAP = 19
    E_WRITE_V1 = 23
    E_UPDATE_V1 = 24
    E_DELETE_V1 = 25
    E_ROWS_QUERY = 29
    E_WRITE = 30
    E_UPDATE = 31
    E_DELETE = 32
    E_GTID = 33
    E_ANONYMOUS_GTID = 34
    E_ANNOTATE_ROWS = 160
    E_MARIADB_GTID = 162
    UNBOUND = 0
    BOUND = 1
    REFUSED = 2

cdef int64_t HAS_ORIGINAL_TIME = <int64_t>1 << 55
cdef uint32_t HAS_ORIGINAL_VERSION = 0x80000000U
cdef uint32_t[8][256] CRC


cdef void make_crc() noexcept nogil:
    cdef uint32_t v
    cdef int i, k
    for i in range(256):
        v = <uint32_t>i
        for k in range(8):
            v = (v >> 1) ^ (0xEDB88320U if v & 1 else 0)
        CRC[0][i] = v
    for i in range(256):
        for k in range(1, 8):
            CRC[k][i] = (CRC[k - 1][i] >> 8) ^ CRC[0][CRC[k - 1][i] & 255]


make_crc()


cdef uint32_t crc32(cptr p, Py_ssize_t n) noexcept nogil:
    """The checksum of zlib, eight bytes at a time."""
    cdef uint32_t v = 0xFFFFFFFFU, low, high
    while n >= 8:
        low = v ^ (<uint32_t>p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24)
        high = <uint32_t>p[4] | <uint32_t>p[5] << 8 | <uint32_t>p[6] << 16 | <uint32_t>p[7] << 24
        v = (CRC[7][low & 255] ^ CRC[6][low >> 8 & 255] ^ CRC[5][low >> 16 & 255] ^ CRC[4][low >> 24]
             ^ CRC[3][high & 255] ^ CRC[2][high >> 8 & 255] ^ CRC[1][high >> 16 & 255] ^ CRC[0][high >> 24])
        p += 8
        n -= 8
    while n:
        v = (v >> 8) ^ CRC[0][(v ^ p[0]) & 255]
        p += 1
        n -= 1
    return v ^ 0xFFFFFFFFU


def checksum(const uint8_t[:] data):
    """The CRC-32 of some bytes."""
    return crc32(&data[0], data.shape[0]) if data.shape[0] else 0


cdef class KnownTable:
    """A table map that the reader has read, and how its rows are written, once that is known."""

    cdef bytes raw
    cdef uint64_t table_id
    cdef int state
    cdef RowLayout layout
    cdef bytes database
    cdef bytes name
    cdef bint listened


cdef class LogCore(Transactions):
    """Takes the events of transactions out of packets. What it does not know, or what is not in order, is left to the reader and the decoder
    in Python, behind which it goes on."""

    cdef dict known
    cdef list current
    cdef KnownTable latest
    cdef object is_plain
    cdef int plain_collation
    cdef bint skip_c
    cdef bint skip_u
    cdef bint skip_d
    cdef public bint checksums
    cdef public int sequence
    """Of the last packet, or -1."""
    cdef public int64_t position
    """Where the next event begins in the file."""
    cdef readonly bytes wanted
    """The table map of the rows that were met without knowing their layout, or None."""
    cdef readonly bint turned
    """Whether table maps have come or gone since `stand`."""

    def __cinit__(self, *args, **more):
        self.known, self.current = {}, []
        self.latest = self.wanted = None
        self.plain_collation = self.sequence = -1
        self.checksums = self.turned = False

    def __init__(self, skipped=(), is_plain=None):
        """`skipped`: letters of operations that are the decoder's; `is_plain` tells of a collation whether its ASCII is ASCII."""
        self.skip_c, self.skip_u, self.skip_d = "c" in skipped, "u" in skipped, "d" in skipped
        self.is_plain = is_plain

    def know(self, bytes raw, RowLayout layout, bytes database, bytes name, bint listened):
        """How rows behind this table map are written; without a layout they are the decoder's. `database` and `name` are encoded;
        `listened`: new rows are the decoder's."""
        cdef KnownTable table = self.table_of(raw)
        table.layout, table.database, table.name, table.listened = layout, database, name, listened
        table.state = REFUSED if layout is None else BOUND

    def forget(self):
        """All tables are to be made known again."""
        self.known.clear()
        self.current.clear()
        self.latest = self.wanted = None

    def stand(self, int64_t position, bytes file, list tables):
        """The reader stands there, in a file whose name is encoded, behind these table maps of a statement."""
        self.position, self.file = position, file
        self.current.clear()
        for raw in tables:
            self.current.append(self.table_of(<bytes?>raw))
        self.turned = False

    def tables(self):
        """The table maps of the statement that goes on."""
        self.turned = False
        return [(<KnownTable>table).raw for table in self.current]

    cdef KnownTable table_of(self, bytes raw):
        cdef KnownTable table
        found = self.known.get(raw)
        if found is not None:
            return <KnownTable>found
        if len(raw) < TABLE_ID_BYTES:
            raise ValueError("no table map")
        if len(self.known) >= TABLES_MAX:
            self.known.clear()
        table = KnownTable()
        table.raw, table.table_id, table.state = raw, little(<cptr>PyBytes_AsString(raw), TABLE_ID_BYTES), UNBOUND
        self.known[raw] = table
        return table

    # -- packets ------------------------------------------------------------------------------------------------------

    def feed(self, object data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t room):
        """Packets between two offsets: returns the offset of the first one that is not done here, or is not whole. Stops once so many bytes
        have been taken, or written since `taken` was asked."""
        cdef Py_buffer view
        cdef cptr p
        cdef Py_ssize_t size, first = start
        self.wanted = None
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if start < 0 or end > view.len or start > end:
                raise ValueError("offsets outside the buffer")
            while end - start > PACKET_HEAD + EVENT_HEAD and start - first < room and self.written() < room:
                p = <cptr>view.buf + start
                size = <Py_ssize_t>little(p, 3)
                # One of the greatest size goes on in the next one. The first byte says that it is an event.
                if size == PACKET_BYTES_MAX or size > end - start - PACKET_HEAD or size <= EVENT_HEAD or p[PACKET_HEAD]:
                    break
                if self.sequence >= 0 and p[3] != (self.sequence + 1 & 255):
                    break
                if not self.event(p + PACKET_HEAD + 1, size - 1):
                    break
                self.sequence = p[3]
                start += PACKET_HEAD + size
            return start
        finally:
            PyBuffer_Release(&view)

    cdef bint event(self, cptr m, Py_ssize_t size) except -1:
        cdef uint8_t kind = m[4]
        cdef Py_ssize_t whole = size
        cdef int64_t place
        if not is_common(kind) or little(m + 9, 4) != <uint64_t>size or m[17] & ARTIFICIAL:
            return False
        if self.checksums:
            size -= CHECKSUM_BYTES
            if size < EVENT_HEAD or crc32(m, size) != <uint32_t>little(m + size, CHECKSUM_BYTES):
                return False
        if not self.body(kind, m, size):
            return False
        # Headers hold 32 bits of the place behind their event, or nothing.
        place = <int64_t>little(m + 13, 4)
        if place:
            place |= self.position >> 32 << 32
            self.position = place + (<int64_t>1 << 32) if place < self.position else place
        else:
            self.position += whole
        if self.ended:
            self.note_end(self.position)
        return True

    cdef bint body(self, uint8_t kind, cptr m, Py_ssize_t size) except -1:
        """One event without its checksum; False: it is the decoder's."""
        if kind == E_MARIADB_GTID:
            return not self.inside and self.mariadb_gtid(m, size)
        if kind == E_GTID or kind == E_ANONYMOUS_GTID:
            return not self.inside and self.mysql_gtid(m, size, kind == E_ANONYMOUS_GTID)
        if not self.inside:
            return False
        if kind == E_TABLE_MAP:
            return self.table_map(m + EVENT_HEAD, size - EVENT_HEAD)
        if kind == E_XID:
            if size != EVENT_HEAD + 8:
                return False
            self.end()
            return True
        if kind == E_QUERY:
            return self.query(m, size)
        if kind == E_ROWS_QUERY:
            return size > EVENT_HEAD
        if kind == E_ANNOTATE_ROWS:
            return True
        return self.rows_event(kind, m, size)

    # -- boundaries ---------------------------------------------------------------------------------------------------

    cdef bint mariadb_gtid(self, cptr m, Py_ssize_t size) except -1:
        cdef uint8_t flags
        if size < EVENT_HEAD + 13:
            return False
        flags = m[EVENT_HEAD + 12]
        if flags & STANDALONE_OR_XA or (flags & GROUPED and size < EVENT_HEAD + 21):
            return False
        self.gtid.kind = MARIADB_GTID
        self.gtid.sequence = little(m + EVENT_HEAD, 8)
        self.gtid.domain = <uint32_t>little(m + EVENT_HEAD + 8, 4)
        self.gtid.server = self.server_id = <uint32_t>little(m + 5, 4)
        write_gtid(&self.gtid)
        # MariaDB logs no BEGIN.
        self.group = True
        return self.begin(<int64_t>little(m, 4) * 1000000)

    cdef bint mysql_gtid(self, cptr m, Py_ssize_t size, bint anonymous) except -1:
        cdef int64_t us
        cdef uint64_t sequence
        if size < EVENT_HEAD + 42 or m[EVENT_HEAD + 25] != 2:
            return False
        sequence = little(m + EVENT_HEAD + 17, 8)
        if sequence >> 63 or anonymous != (sequence == 0) or not times_of(m + EVENT_HEAD + 42, size - EVENT_HEAD - 42, &us):
            return False
        self.gtid.kind = NO_GTID if anonymous else MYSQL_GTID
        self.gtid.sequence = sequence
        memcpy(self.gtid.source, m + EVENT_HEAD + 1, SOURCE_BYTES)
        write_gtid(&self.gtid)
        self.server_id, self.group = <uint32_t>little(m + 5, 4), False
        return self.begin(us if us else <int64_t>little(m, 4) * 1000000)

    cdef bint query(self, cptr m, Py_ssize_t size) except -1:
        """A BEGIN or a COMMIT, and nothing else."""
        cdef Py_ssize_t p = EVENT_HEAD + 13, schema, status
        cdef int collation
        if size < p:
            return False
        schema, status = m[EVENT_HEAD + 8], <Py_ssize_t>little(m + EVENT_HEAD + 11, 2)
        if size - p < status + schema + 1 or not collation_of(m + p, status, &collation):
            return False
        if collation > 0 and collation != self.plain_collation:
            if self.is_plain is None or not self.is_plain(collation):
                return False
            self.plain_collation = collation
        p += status
        if not is_utf8(m + p, schema) or m[p + schema]:
            return False
        p += schema + 1
        if size - p == 5 and not memcmp(m + p, b"BEGIN", 5):
            self.thread, self.group = <int64_t>little(m + EVENT_HEAD, 4), True
            return True
        if size - p == 6 and not memcmp(m + p, b"COMMIT", 6):
            self.end()
            return True
        return False

    # -- rows ---------------------------------------------------------------------------------------------------------

    cdef bint table_map(self, cptr m, Py_ssize_t size) except -1:
        """Takes a table map that the reader has read before."""
        cdef KnownTable table = self.latest
        if table is None or len(table.raw) != size or memcmp(m, PyBytes_AsString(table.raw), <size_t>size):
            found = self.known.get(PyBytes_FromStringAndSize(<char*>m, size))
            if found is None:
                return False
            table = self.latest = <KnownTable>found
        if len(self.current) >= STATEMENT_TABLES:
            return False
        self.current.append(table)
        self.turned = True
        return True

    cdef bint rows_event(self, uint8_t kind, cptr m, Py_ssize_t size) except -1:
        cdef Py_ssize_t p = EVENT_HEAD + TABLE_ID_BYTES + 2, bitmap
        cdef int64_t columns
        cdef int flags, op
        cdef KnownTable table
        if size < p + 3:
            return False
        flags = <int>little(m + p - 2, 2)
        if kind >= E_WRITE:
            columns = <int64_t>little(m + p, 2)
            if columns < 2 or size - p < columns + 1:
                return False
            p += <Py_ssize_t>columns
        columns = m[p]
        p += 1
        if columns == 252:
            if size - p < 2:
                return False
            columns = <int64_t>little(m + p, 2)
            p += 2
        elif columns > 250:
            return False
        table = self.table_at(little(m + EVENT_HEAD, TABLE_ID_BYTES))
        if table is None or columns != table.layout.width_count:
            return False
        bitmap = <Py_ssize_t>(columns + 7) // 8
        if kind == E_WRITE or kind == E_WRITE_V1:
            op = INSERT
        else:
            op = UPDATE if kind == E_UPDATE or kind == E_UPDATE_V1 else DELETE
        if size - p <= (2 * bitmap if op == UPDATE else bitmap) or not self.is_ours(table, op):
            return False
        self.before_count = 0 if op == INSERT else self.places(table.layout, self.before, m + p)
        if op == UPDATE:
            p += bitmap
        self.after_count = 0 if op == DELETE else self.places(table.layout, self.after, m + p)
        p += bitmap
        if not self.has_all(table.layout, op) or not self.all_rows(table, op, m, p, size):
            return False
        if flags & END_OF_STATEMENT:
            self.current.clear()
            self.turned = True
        return True

    cdef KnownTable table_at(self, uint64_t table_id):
        """The table of this number in the statement, whose rows may be written here; None."""
        cdef Py_ssize_t i
        cdef KnownTable table
        for i in range(len(self.current) - 1, -1, -1):
            table = <KnownTable>self.current[i]
            if table.table_id == table_id:
                if table.state == UNBOUND:
                    self.wanted = table.raw
                return table if table.state == BOUND else None
        return None

    cdef bint is_ours(self, KnownTable table, int op):
        if op == INSERT:
            return not self.skip_c and not table.listened
        return not (self.skip_u if op == UPDATE else self.skip_d)

    cdef bint all_rows(self, KnownTable table, int op, cptr m, Py_ssize_t at, Py_ssize_t size) except -1:
        """Writes all rows of an event, or none."""
        cdef Py_ssize_t records = len(self.records), total = self.total, largest = self.largest, counted, next_at
        cdef int64_t row = 0
        topic = self.largest_topic
        if not table.layout.ignored:
            self.source(table.database, table.name, self.position)
            self.tail = self.tail_c if op == INSERT else self.tail_u if op == UPDATE else self.tail_d
            if table.layout is not self.counting:
                self.turn(table.layout)
        counted = self.counted
        while at < size:
            next_at = self.tried(table.layout, op, m, at, size, row, self.index + row)
            if next_at <= at:
                del self.records[records:]
                self.total, self.largest, self.largest_topic, self.counted = total, largest, topic, counted
                return False
            at = next_at
            row += 1
        self.index += row
        return True


cdef bint is_common(uint8_t kind) noexcept nogil:
    return (
        kind == E_QUERY or kind == E_XID or kind == E_TABLE_MAP or (E_WRITE_V1 <= kind <= E_DELETE_V1)
        or (E_ROWS_QUERY <= kind <= E_ANONYMOUS_GTID) or kind == E_ANNOTATE_ROWS or kind == E_MARIADB_GTID
    )


cdef bint times_of(cptr p, Py_ssize_t left, int64_t* us) noexcept nogil:
    """The time of the commit in what servers have added to a GTID since 5.7, 0 where it is missing; False where something is cut short."""
    cdef int size
    us[0] = 0
    if left < 7:
        return True
    us[0] = <int64_t>little(p, 7)
    p += 7
    left -= 7
    if us[0] & HAS_ORIGINAL_TIME:
        if left < 7:
            return False
        p += 7
        left -= 7
    us[0] &= HAS_ORIGINAL_TIME - 1
    if left:
        if p[0] == 251 or p[0] == 255:
            return False
        size = 1 if p[0] < 251 else 3 if p[0] == 252 else 4 if p[0] == 253 else 9
        if left < size:
            return False
        p += size
        left -= size
    return left < 4 or not little(p, 4) & HAS_ORIGINAL_VERSION or left >= 8


cdef bint collation_of(cptr p, Py_ssize_t left, int* found) noexcept nogil:
    """The client's collation among the status variables of a statement, -1 where it is not said, as `plain_events` reads it; False where
    one is cut short."""
    cdef int code
    cdef Py_ssize_t size, count
    found[0] = -1
    while left:
        code = p[0]
        p += 1
        left -= 1
        if code == 4:
            if left < 2:
                return False
            found[0] = <int>little(p, 2)
            return True
        size = status_size(code)
        if not size:
            return True
        if size < 0:
            if not left:
                return False
            count = p[0]
            # A length and a text; in a catalog with a zero behind it; two texts; collations of four bytes.
            size = 1 + count
            if code == 2:
                size += 1
            elif code == 131:
                size = 1 + 4 * count
            elif code == 11:
                if left < size + 1:
                    return False
                size += 1 + p[size]
            elif code == 12:
                size = databases_size(p, left)
                if not size:
                    return False
        if size > left:
            return False
        p += size
        left -= size
    return True


cdef Py_ssize_t databases_size(cptr p, Py_ssize_t left) noexcept nogil:
    """The bytes of the databases' names and of their count; 0 where they are cut short."""
    cdef int count = p[0] if p[0] != 254 else 0
    cdef Py_ssize_t at = 1
    while count:
        while at < left and p[at]:
            at += 1
        if at >= left:
            return 0
        at += 1
        count -= 1
    return at


cdef Py_ssize_t status_size(int code) noexcept nogil:
    """The bytes of a status variable, -1 where they vary, 0 for one that is not known."""
    if code == 0 or code == 3 or code == 10:
        return 4
    if code == 1 or code == 9 or code == 17 or code == 129:
        return 8
    if code == 7 or code == 8 or code == 18:
        return 2
    if code == 13 or code == 128:
        return 3
    if code == 16 or code == 19 or code == 20:
        return 1
    return -1 if code == 2 or code == 5 or code == 6 or code == 11 or code == 12 or code == 131 else 0
