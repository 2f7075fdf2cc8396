/* Reads a part of one file of the binary log as a replica does and throws everything away: the server's own limit.
   drain PORT USER FILE POSITION END NAP_US
   The user needs no password. NAP_US 0 blocks in every read; otherwise it naps after each short read, so that the server is
   not woken per event. Prints events, their bytes, seconds from the request to the last, and seconds of processor time. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { QUERY = 3, DUMP = 18, SERVER_ID = 999999 };
enum { ROTATE = 4, FORMAT = 15, HEARTBEAT = 27 };
enum { LONG_PASSWORD = 1, PROTOCOL_41 = 0x200, SECURE_CONNECTION = 0x8000, PLUGIN_AUTH = 0x80000 };

static uint32_t le32(const unsigned char *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }

static unsigned char buffer[1 << 20];

static void send_packet(int fd, int number, const char *body, uint32_t size) {
    char out[1024];
    uint32_t head = size | (uint32_t)number << 24;
    memcpy(out, &head, 4);
    memcpy(out + 4, body, size);
    if (write(fd, out, 4 + size) < 0) { perror("write"); exit(1); }
}

/* One packet that answers another; its body is in the buffer. */
static void answer(int fd) {
    size_t have = 0, wanted = 4;
    while (have < wanted) {
        ssize_t got = recv(fd, buffer + have, wanted - have, 0);
        if (got <= 0) { perror("recv"); exit(1); }
        have += got;
        if (have == 4) wanted = 4 + (le32(buffer) & 0xffffff);
    }
    if (buffer[4] == 0xff) { fprintf(stderr, "%.*s\n", (int)(wanted - 7), buffer + 7); exit(1); }
}

static void query(int fd, const char *text) {
    char out[512];
    send_packet(fd, 0, out, sprintf(out, "%c%s", QUERY, text));
    answer(fd);
}

static void log_in(int fd, const char *user) {
    char out[512] = {0};
    uint32_t able = LONG_PASSWORD | PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH, largest = 1 << 24;
    answer(fd);
    memcpy(out, &able, 4);
    memcpy(out + 4, &largest, 4);
    out[8] = 45;
    send_packet(fd, 1, out, 32 + sprintf(out + 32, "%s%c%cmysql_native_password", user, 0, 0) + 1);
    answer(fd);
}

static void ask_for_log(int fd, const char *file, uint32_t position) {
    char out[512] = {DUMP};
    uint32_t id = SERVER_ID;
    memcpy(out + 1, &position, 4);
    memcpy(out + 7, &id, 4);
    send_packet(fd, 0, out, 11 + sprintf(out + 11, "%s", file));
}

int main(int argc, char **argv) {
    if (argc != 7) return 2;
    int nap = atoi(argv[6]), done = 0, fd = socket(AF_INET, SOCK_STREAM, 0), space = 4 << 20;
    uint32_t end = strtoul(argv[5], 0, 10);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &space, sizeof space);
    if (connect(fd, (void *)&address, sizeof address)) { perror("connect"); return 1; }
    log_in(fd, argv[2]);
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
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    double cpu = u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
    printf("%lu %lu %.6f %.6f\n", (unsigned long)events, (unsigned long)bytes, last - first, cpu);
    return 0;
}
