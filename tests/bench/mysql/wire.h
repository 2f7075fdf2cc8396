/* What the programs of this folder share: a login without a password over MySQL's protocol, and packets. */
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

enum { QUERY = 3 };
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

static int connected(const char *port, const char *user) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), space = 4 << 20;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &space, sizeof space);
    if (connect(fd, (void *)&address, sizeof address)) { perror("connect"); exit(1); }
    log_in(fd, user);
    return fd;
}

static double used_cpu(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}
