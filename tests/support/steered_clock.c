/* Preloaded into a real redis-server: its wall clock is the 64-bit number of microseconds in the file that
   STEERED_CLOCK names, which the test maps and sets; or it is ahead of this machine's by the microseconds in
   STEERED_OFFSET, or by those in the file STEERED_STEPS, which may change. Nothing else of the server is
   changed: it still counts its uptime from the real time at its start. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *clock_us, *steps_us;
static int64_t offset_us;

static volatile int64_t *map(const char *variable) {
  const char *path = getenv(variable);
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *page = fd < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
  return page == MAP_FAILED ? 0 : page;
}

__attribute__((constructor)) static void map_clock(void) {
  const char *offset = getenv("STEERED_OFFSET");
  if (offset) offset_us = atoll(offset);
  clock_us = map("STEERED_CLOCK");
  steps_us = map("STEERED_STEPS");
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
  if (!clock_us && syscall(SYS_gettimeofday, tv, tz) != 0) return -1;
  int64_t us = clock_us ? *clock_us : tv->tv_sec * INT64_C(1000000) + tv->tv_usec + offset_us;
  if (steps_us) us += *steps_us;
  tv->tv_sec = us / 1000000;
  tv->tv_usec = us % 1000000;
  return 0;
}

/* MariaDB and Java call this one. Its other clocks are not changed. */
int clock_gettime(clockid_t clock, struct timespec *now) {
  if (syscall(SYS_clock_gettime, clock, now) != 0) return -1;
  if (clock == CLOCK_REALTIME) now->tv_sec += (offset_us + (steps_us ? *steps_us : 0)) / 1000000;
  return 0;
}
