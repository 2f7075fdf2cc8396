/* Reads the rows of a table chunk by chunk, in the order of its key, and throws them away: the limit of a snapshot.
   rows PORT USER TABLE COLUMNS ROWS CHUNK BINARY
   The user needs no password, and the key `id` has the numbers from 1 to ROWS. BINARY 1 prepares the statement of each chunk and
   executes it, so that values come in their binary forms; 0 asks for texts. Prints rows, their bytes, seconds, and seconds of
   processor time. */
#include "wire.h"

enum { PREPARE = 22, EXECUTE = 23 };

static size_t have, at;

/* Steps behind the next packet; returns where its body is and its size. */
static unsigned char *next(int fd, uint32_t *size) {
    while (have - at < 4 || have - at - 4 < (*size = le32(buffer + at) & 0xffffff)) {
        if (at) { memmove(buffer, buffer + at, have - at); have -= at; at = 0; }
        ssize_t got = recv(fd, buffer + have, sizeof buffer - have, 0);
        if (got <= 0) { perror("recv"); exit(1); }
        have += got;
    }
    at += 4 + *size;
    unsigned char *body = buffer + at - *size;
    if (*body == 0xff) { fprintf(stderr, "%.*s\n", (int)*size - 3, body + 3); exit(1); }
    return body;
}

static int is_end(const unsigned char *body, uint32_t size) { return *body == 0xfe && size < 9; }

/* Steps behind packets up to an end; returns how many there were. */
static uint64_t pass(int fd, uint64_t *bytes) {
    uint64_t count = 0;
    uint32_t size;
    for (;;) {
        unsigned char *body = next(fd, &size);
        if (is_end(body, size)) return count;
        count++;
        *bytes += size;
    }
}

static void ask(int fd, char *words, int binary) {
    uint32_t size;
    uint64_t unused = 0;
    have = at = 0;
    words[0] = binary ? PREPARE : QUERY;
    send_packet(fd, 0, words, 1 + strlen(words + 1));
    if (!binary) return;
    char execute[10] = {EXECUTE};
    memcpy(execute + 1, next(fd, &size) + 1, 4);
    pass(fd, &unused);
    execute[6] = 1;
    send_packet(fd, 0, execute, sizeof execute);
}

int main(int argc, char **argv) {
    if (argc != 8) return 2;
    uint64_t rows = strtoull(argv[5], 0, 10), chunk = strtoull(argv[6], 0, 10), count = 0, bytes = 0, unused = 0;
    int binary = atoi(argv[7]), fd = connected(argv[1], argv[2]);
    uint32_t size;
    char words[1000];
    query(fd, "SET NAMES utf8mb4");
    double first = now();
    for (uint64_t low = 0; low < rows; low += chunk) {
        snprintf(words + 1, sizeof words - 1, "select %s from %s where id > %lu order by id limit %lu", argv[4], argv[3],
                 (unsigned long)low, (unsigned long)chunk);
        ask(fd, words, binary);
        next(fd, &size);
        pass(fd, &unused);
        count += pass(fd, &bytes);
    }
    printf("%lu %lu %.6f %.6f\n", (unsigned long)count, (unsigned long)bytes, now() - first, used_cpu());
    return 0;
}
