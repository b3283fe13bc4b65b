/* Processes for kill.py. All ignore TERM, so that only a KILL ends them.
   crowd sleep N             N processes that do nothing
   crowd flat FILE N         a job of N: one lock on FILE, shared by all
   crowd deep FILE N         the same, each the child of the one before
   crowd chains FILE N US    N chains: each link starts the next one after US microseconds, in a session of its own, and ends
   crowd take FILE           waits for the lock on FILE; prints for how many ms somebody else still had it */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static int lock(int fd, int how) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, how, &whole);
}

static void rest(void) {
    for (;;) pause();
}

static void chain(int us) {
    for (;;) {
        setsid();
        usleep(us);
        if (fork() != 0) _exit(0);
    }
}

int main(int count, char **words) {
    if (count < 3) return 64;
    signal(SIGTERM, SIG_IGN);
    if (!strcmp(words[1], "sleep")) {
        for (int left = atoi(words[2]); left > 0; left--)
            if (fork() == 0) rest();
        puts("up");
        fflush(stdout);
        rest();
    }
    int fd = open(words[2], O_RDWR | O_CREAT, 0600);
    if (!strcmp(words[1], "take")) {
        double began = now();
        while (lock(fd, F_OFD_SETLK)) usleep(50);
        printf("%.2f\n", now() - began);
        return 0;
    }
    if (lock(fd, F_OFD_SETLKW)) return 1;
    int n = atoi(words[3]);
    if (!strcmp(words[1], "chains")) {
        for (; n > 0; n--)
            if (fork() == 0) chain(atoi(words[4]));
    } else {
        int deep = !strcmp(words[1], "deep");
        for (; n > 1; n--) {
            pid_t child = fork();
            if (deep ? child != 0 : child == 0) rest();
        }
    }
    close(open("up", O_WRONLY | O_CREAT, 0600));
    rest();
}
