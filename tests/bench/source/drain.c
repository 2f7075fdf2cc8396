/* Drains a logical slot over a plain socket and throws everything away: the server's own limit.
   drain PORT USER DATABASE SLOT PUBLICATION END_LSN NAP_US
   NAP_US 0 blocks in every read; otherwise it naps after each short read, so that the server is not woken per message. */
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

static uint32_t be32(const unsigned char *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static uint64_t be64(const unsigned char *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }

static unsigned char buffer[1 << 20];

static void packet(int fd, char type, const char *body, uint32_t size) {
    char out[4096];
    uint32_t at = 0, length = htonl(size + 4);
    if (type) out[at++] = type;
    memcpy(out + at, &length, 4);
    memcpy(out + at + 4, body, size);
    if (write(fd, out, at + 4 + size) < 0) { perror("write"); exit(1); }
}

int main(int argc, char **argv) {
    if (argc != 8) return 2;
    int nap = atoi(argv[7]), started = 0, done = 0, fd = socket(AF_INET, SOCK_STREAM, 0), space = 4 << 20;
    unsigned high, low;
    sscanf(argv[6], "%X/%X", &high, &low);
    uint64_t end = ((uint64_t)high << 32) | low, rows = 0, bytes = 0;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &space, sizeof space);
    if (connect(fd, (void *)&address, sizeof address)) { perror("connect"); return 1; }
    char text[2048];
    uint32_t n = 0, version = htonl(196608);
    memcpy(text, &version, 4);
    n = 4 + sprintf(text + 4, "user%c%s%cdatabase%c%s%creplication%cdatabase%c", 0, argv[2], 0, 0, argv[3], 0, 0, 0);
    text[n++] = 0;
    packet(fd, 0, text, n);
    size_t have = 0;
    double first = 0, last = 0;
    while (!done) {
        ssize_t got = recv(fd, buffer + have, sizeof buffer - have, 0);
        if (got <= 0) { perror("recv"); return 1; }
        have += got;
        size_t p = 0;
        while (have - p >= 5) {
            uint32_t size = be32(buffer + p + 1);
            if (have - p < (size_t)size + 1) break;
            unsigned char *b = buffer + p + 5, type = buffer[p];
            if (type == 'd' && b[0] == 'w') {
                unsigned char kind = b[25];
                bytes += size - 4;
                if (kind == 'I' || kind == 'U' || kind == 'D') { if (!rows++) first = now(); }
                else if (kind == 'C' && be64(b + 35) >= end) done = 1;
            } else if (type == 'd' && b[0] == 'k' && rows && be64(b + 1) >= end) done = 1;
            else if (type == 'E') { fprintf(stderr, "%s\n", (char *)b); return 1; }
            else if (type == 'Z' && !started) {
                started = 1;
                n = sprintf(text, "START_REPLICATION SLOT %s LOGICAL 0/0 (proto_version '1', publication_names '%s')", argv[4], argv[5]);
                packet(fd, 'Q', text, n + 1);
            }
            p += size + 1;
        }
        memmove(buffer, buffer + p, have - p);
        have -= p;
        if (nap && got < 65536) usleep(nap);
    }
    last = now();
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    double cpu = u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
    printf("%lu %lu %.6f %.6f\n", (unsigned long)rows, (unsigned long)bytes, last - first, cpu);
    return 0;
}
