/* pair ROUNDS COMMAND… [+ COMMAND…]…: runs the commands in turn, ROUNDS times, and prints for each of them the median and
   the least time from its start to its end, in microseconds: one line a command. What disturbs the machine disturbs all of
   them alike. A command that fails ends it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **words) {
    int rounds = count > 2 ? atoi(words[1]) : 0, commands = 0;
    if (rounds < 1) return 64;
    char **command[64];
    for (int at = 2; at < count && commands < 64; at++) {
        command[commands++] = words + at;
        while (at < count && strcmp(words[at], "+")) at++;
        words[at] = NULL;
    }
    double *took = malloc(sizeof(double) * rounds * commands);
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    for (int round = -3; round < rounds; round++) {
        for (int at = 0; at < commands; at++) {
            pid_t pid;
            int status = 0;
            double began = now();
            if (posix_spawnp(&pid, command[at][0], &quiet, NULL, command[at], environ)) status = 127;
            else waitpid(pid, &status, 0);
            if (status) {
                fprintf(stderr, "pair: %s ended with %d\n", command[at][0], status);
                return 1;
            }
            if (round >= 0) took[at * rounds + round] = now() - began;
        }
    }
    for (int at = 0; at < commands; at++) {
        qsort(took + at * rounds, rounds, sizeof(double), by_size);
        printf("%.0f %.0f\n", took[at * rounds + rounds / 2], took[at * rounds]);
    }
}
