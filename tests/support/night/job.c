/* A job of the night: says in a file that all jobs have mapped when it began, that it lives, which fence and slot it was
   given, and when it ended. What was said stands there however the job ends. Between that it adds to registers that
   refuse a smaller fence than they have seen.

   job LIVES REGISTERS RUN SPAN_MS STATUS FLAGS REGISTER…

   FLAGS: d ignores TERM, f works in a child that is in a session of its own, s adds its slot to the numbers of its
   registers, - nothing. A life is 16 numbers of 64 bits; the first one in the file says how many lives there are, and
   whether all jobs are to end. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RUN, PID, START, LAST, END, FENCE, SLOT, REFUSED, PENDING, ACCEPTED };
enum { LIVES = 1 << 19, MOST_REGISTERS = 4 };

struct reg {
  volatile uint64_t fence, value;
};

static volatile uint64_t *life;
static struct reg *registers;
static int locks;

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_BOOTTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void lock(int at, short how) {
  struct flock range = {.l_type = how, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
  while (fcntl(locks, F_SETLKW, &range) != 0) {
  }
}

/* Reads a register, and has it refuse every smaller fence from now on; whether it took this one. */
static int claim(int at, uint64_t fence, uint64_t *value) {
  struct reg *reg = &registers[at];
  lock(at, F_WRLCK);
  int took = fence >= reg->fence;
  if (took) {
    reg->fence = fence;
    *value = reg->value;
  }
  lock(at, F_UNLCK);
  return took;
}

/* Writes what follows from what was read before. */
static int put(int at, uint64_t fence, uint64_t value) {
  struct reg *reg = &registers[at];
  lock(at, F_WRLCK);
  int took = fence >= reg->fence;
  if (took) reg->value = value;
  lock(at, F_UNLCK);
  return took;
}

static void *map(const char *path, size_t size, int *file) {
  *file = open(path, O_RDWR | O_CLOEXEC);
  void *at = *file < 0 ? MAP_FAILED : mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
  if (at == MAP_FAILED) _exit(97);
  return at;
}

int main(int count, char **words) {
  if (count < 7 || count > 7 + MOST_REGISTERS) return 97;
  const char *flags = words[6], *fence_text = getenv("DLOCK_FENCE"), *slot_text = getenv("DLOCK_SLOT");
  uint64_t fence = fence_text ? strtoull(fence_text, 0, 10) : 0;
  int own = count - 7, at[MOST_REGISTERS];
  for (int i = 0; i < own; i++) {
    at[i] = atoi(words[7 + i]);
    if (strchr(flags, 's') && slot_text) at[i] += atoi(slot_text);
  }
  if (strchr(flags, 'f')) {
    pid_t child = fork();
    if (child > 0) {
      int how;
      while (waitpid(child, &how, 0) != child) {
      }
      if (WIFEXITED(how)) return WEXITSTATUS(how);
      raise(WTERMSIG(how));
      return 98;
    }
    setsid();
  }
  if (strchr(flags, 'd')) signal(SIGTERM, SIG_IGN);

  /* A limit that was meant for dlock. */
  struct rlimit memory;
  getrlimit(RLIMIT_AS, &memory);
  memory.rlim_cur = memory.rlim_max;
  setrlimit(RLIMIT_AS, &memory);

  int file;
  volatile uint64_t *lives = map(words[1], LIVES * 128, &file);
  registers = map(words[2], 4096, &locks);
  uint64_t number = __atomic_add_fetch(lives, 1, __ATOMIC_SEQ_CST);
  if (number >= LIVES) return 97;
  life = lives + number * 16;
  life[PID] = (uint64_t)getpid();
  life[FENCE] = fence;
  life[SLOT] = slot_text ? 1 + (uint64_t)atoi(slot_text) : 0;
  uint64_t start = now();
  life[START] = life[LAST] = start;
  __atomic_store_n(&life[RUN], strtoull(words[3], 0, 10), __ATOMIC_SEQ_CST);

  uint64_t value[MOST_REGISTERS], until = start + strtoull(words[4], 0, 10) * 1000000u;
  int has[MOST_REGISTERS];
  for (int i = 0; i < own; i++) {
    has[i] = claim(at[i], fence, &value[i]);
    if (!has[i]) life[REFUSED]++;
  }
  for (unsigned turn = 0; now() < until && !lives[1]; turn++) {
    struct timespec pause = {0, 1000000};
    nanosleep(&pause, 0);
    life[LAST] = now();
    if (turn % 8) continue;
    for (int i = 0; i < own; i++) {
      if (!has[i]) continue;
      /* Whoever is killed in here may have written, or not. */
      life[PENDING] = 1 + (uint64_t)i;
      has[i] = put(at[i], fence, value[i] + 1);
      if (has[i]) {
        value[i]++;
        life[ACCEPTED + i]++;
      } else {
        life[REFUSED]++;
      }
      life[PENDING] = 0;
    }
  }
  life[END] = life[LAST] = now();
  return atoi(words[5]);
}
