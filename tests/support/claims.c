/* Starts COUNT processes. Each claims that its environment and its arguments are MEGABYTES long each, as any user may
   (PR_SET_MM_MAP in prctl(2)); the memory is not allocated until another process reads it. Prints "ready" when all have done so.
   With a COMMAND, the first process then runs it, and prints its peak memory in KiB. All end
   when the standard input of the first one ends. */

#define _DEFAULT_SOURCE
#include <linux/prctl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void claim(size_t size)
{
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    uint64_t start = (uintptr_t)memory, end = start + size, heap = (uintptr_t)sbrk(0);
    struct prctl_mm_map map = {
        .start_code = start, .end_code = end, .start_data = start, .end_data = end, .start_brk = heap, .brk = heap,
        .start_stack = end, .arg_start = start, .arg_end = end, .env_start = start, .env_end = end, .exe_fd = -1,
    };
    if (prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0) != 0) {
        perror("PR_SET_MM_MAP");
        exit(1);
    }
}

int main(int count, char **words)
{
    if (count < 3) return 2;
    size_t size = (size_t)atol(words[2]) << 20;
    char byte;
    for (long left = atol(words[1]) - 1; left > 0; left--) {
        int ready[2];
        if (pipe(ready) != 0) return 1;
        pid_t child = fork();
        if (child == -1) return 1;
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            claim(size);
            if (write(ready[1], "", 1) != 1) return 1;
            for (;;) pause();
        }
        close(ready[1]);
        if (read(ready[0], &byte, 1) != 1) return 1;
        close(ready[0]);
    }
    claim(size);
    puts("ready");
    fflush(stdout);
    if (count > 3) {
        struct rusage used;
        pid_t child = fork();
        if (child == 0) {
            execvp(words[3], words + 3);
            _exit(127);
        }
        if (wait4(child, NULL, 0, &used) != child) return 1;
        printf("%ld\n", used.ru_maxrss);
        fclose(stdout);
    }
    while (read(0, &byte, 1) > 0) continue;
    return 0;
}
