/* Preloaded into a real redis-server: its wall clock is the 64-bit number of microseconds in the file that
   STEERED_CLOCK names, which the test maps and sets. Nothing else of the server is changed. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

static volatile int64_t *clock_us;

__attribute__((constructor)) static void map_clock(void) {
  const char *path = getenv("STEERED_CLOCK");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *page = fd < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
  if (page != MAP_FAILED) clock_us = page;
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
  if (!clock_us) return (int)syscall(SYS_gettimeofday, tv, tz);
  int64_t us = *clock_us;
  tv->tv_sec = us / 1000000;
  tv->tv_usec = us % 1000000;
  return 0;
}
