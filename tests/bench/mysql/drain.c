/* Reads a part of one file of the binary log as a replica does and throws everything away: the server's own limit.
   drain PORT USER FILE POSITION END NAP_US
   The user needs no password. NAP_US 0 blocks in every read; otherwise it naps after each short read, so that the server is
   not woken per event. Prints events, their bytes, seconds from the request to the last, and seconds of processor time. */
#include "wire.h"

enum { DUMP = 18, SERVER_ID = 999999 };
enum { ROTATE = 4, FORMAT = 15, HEARTBEAT = 27 };

static void ask_for_log(int fd, const char *file, uint32_t position) {
    char out[512] = {DUMP};
    uint32_t id = SERVER_ID;
    memcpy(out + 1, &position, 4);
    memcpy(out + 7, &id, 4);
    send_packet(fd, 0, out, 11 + sprintf(out + 11, "%s", file));
}

int main(int argc, char **argv) {
    if (argc != 7) return 2;
    int nap = atoi(argv[6]), done = 0, fd = connected(argv[1], argv[2]);
    uint32_t end = strtoul(argv[5], 0, 10);
    query(fd, "SET @master_binlog_checksum = @@global.binlog_checksum");
    query(fd, "SET @mariadb_slave_capability = 4");
    double first = now();
    ask_for_log(fd, argv[3], strtoul(argv[4], 0, 10));
    size_t have = 0;
    uint64_t events = 0, bytes = 0;
    while (!done) {
        ssize_t got = recv(fd, buffer + have, sizeof buffer - have, 0);
        if (got <= 0) { perror("recv"); return 1; }
        have += got;
        size_t p = 0;
        while (have - p >= 4) {
            uint32_t size = le32(buffer + p) & 0xffffff;
            if (have - p < (size_t)size + 4) break;
            unsigned char *b = buffer + p + 4;
            if (b[0]) { fprintf(stderr, "%.*s\n", (int)size - 3, b + 3); return 1; }
            /* What the server says of the file stands in front of what was asked for. Inside a transaction no event has a place. */
            if (b[5] != ROTATE && b[5] != FORMAT && b[5] != HEARTBEAT) {
                events++;
                bytes += size - 1;
                done |= le32(b + 14) >= end;
            }
            p += size + 4;
        }
        memmove(buffer, buffer + p, have - p);
        have -= p;
        if (nap && got < 65536) usleep(nap);
    }
    double last = now();
    printf("%lu %lu %.6f %.6f\n", (unsigned long)events, (unsigned long)bytes, last - first, used_cpu());
    return 0;
}
