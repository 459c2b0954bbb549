// attack MODE prepares the attack of its mode, and then spins in its own function.
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, used))

static volatile uint64_t sum;

NOINLINE void good_work(void) {
  __asm__ volatile("" : : "r"(__builtin_frame_address(0))); // it has a frame pointer
  while (sum + 1) // the compiler cannot see that it never ends

    for (int i = 0; i < 1000; i++)
      sum += i;
}

NOINLINE void evil_work(void) {
  for (;;)
    for (int i = 0; i < 1000; i++)
      sum += i;
}

NOINLINE void *evil_malloc(void *arg) {
  for (;;) {
    void *p = malloc(64);
    __asm__ volatile("" : : "r"(p) : "memory");
    free(p);
  }
  return arg;
}

NOINLINE void good_malloc(void) {
  for (;;) {
    for (int i = 0; i < 20; i++) {
      void *p = malloc(16384);
      __asm__ volatile("" : : "r"(p) : "memory");
      free(p);
    }
    usleep(20000);
  }
}

// Each of two functions calls itself or the other, by the bits of path: a billion stacks.
#define STEP(name) NOINLINE static void name(uint64_t path, int depth, void (*leaf)(void))
STEP(evil_left);
STEP(evil_right) {
  if (!depth)
    leaf();
  else
    (path & 1 ? evil_left : evil_right)(path >> 1, depth - 1, leaf);
  __asm__ volatile("" : : : "memory"); // no tail call
}
STEP(evil_left) {
  if (!depth)
    leaf();
  else
    (path & 1 ? evil_left : evil_right)(path >> 1, depth - 1, leaf);
  __asm__ volatile("" : : : "memory");
}

NOINLINE static void wait_little(void) { usleep(50); }

NOINLINE static void *evil_stacks(void *arg) {
  prctl(PR_SET_TIMERSLACK, 1);
  for (uint64_t i = (uintptr_t)arg << 40;; i++)
    evil_left(i * 0x9e3779b97f4a7c15 >> 34, 30, wait_little);
  return arg;
}

// evil_processes starts processes that wait once, each with another stack.
NOINLINE static void *evil_processes(void *arg) {
  for (uint64_t i = (uintptr_t)arg << 40;; i++)
    if (!vfork()) {
      evil_left(i * 0x9e3779b97f4a7c15 >> 34, 30, wait_little);
      _exit(0);
    }
  return arg;
}

// good_waits waits with sixteen stacks.
NOINLINE static void good_waits(void) {
  for (uint64_t i = 0;; i++)
    evil_left(i % 16, 4, wait_little);
}

// evil_futex wakes other threads and waits for them without pause.
static uint32_t turn;

NOINLINE static void *evil_futex(void *arg) {
  static const struct timespec moment = {0, 1000};
  for (;;) {
    uint32_t now = __atomic_add_fetch(&turn, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, now, &moment, NULL, 0);
  }
  return arg;
}

NOINLINE static void *evil_sleep(void *arg) {
  usleep(10000000);
  return arg;
}

// threads starts n threads with small stacks. arg counts from 1.
static void threads(int n, void *(*run)(void *)) {
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 65536);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  for (uintptr_t i = 1; i <= (uintptr_t)n; i++) {
    pthread_t t;
    while (pthread_create(&t, &attr, run, (void *)i))
      usleep(1000);
  }
}

// evil_context publishes a process context with false contents that change while it is read.
NOINLINE static void evil_context(void) {
  uint64_t *c = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  prctl(0x53564d41, 0, c, 4096, "OTEL_CTX"); // PR_SET_VMA, PR_SET_VMA_ANON_NAME
  for (uint64_t i = 1;; i++) {
    c[0] = 0x5854435f4c45544f; // OTEL_CTX
    c[1] = 2 | (i % 7 ? i << 32 : 0xffffffffull << 32);
    c[2] = i;
    c[3] = i % 3 ? (uintptr_t)c + i % 8192 : i * 0x9e3779b97f4a7c15;
  }
}

static FILE *perf_map(void) {
  char path[64];
  snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
  return fopen(path, "w");
}

// jit runs code in an anonymous mapping that begins at an address, some bytes into it.
static void jit(uint64_t at, size_t size, size_t skip) {
  unsigned char *code = mmap((void *)at, size, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (code == MAP_FAILED)
    exit(1);
#if defined(__x86_64__)
  memcpy(code + skip, "\xeb\xfe", 2); // jmp .
#else
  memcpy(code + skip, "\x00\x00\x00\x14", 4); // b .
#endif
  __builtin___clear_cache((char *)code, (char *)code + skip + 4);
  ((void (*)(void))(code + skip))();
}

int main(int argc, char **argv) {
  alarm(3600); // if nobody kills it earlier
  const char *mode = argc > 1 ? argv[1] : "good";
  if (!strcmp(mode, "perfmap")) { // one long name in many pieces
    FILE *f = perf_map();
    fprintf(f, "700000000000 4000000 ");
    for (int i = 0; i < 8000; i++)
      fputc('L', f);
    fputc('\n', f);
    for (uint64_t i = 0; i < 130000; i++)
      fprintf(f, "%lx 1 a\n", (unsigned long)(0x700000000000 + 256 * i));
    fclose(f);
    jit(0x700000000000, 0x4000000, 0x80);
  }
  if (!strcmp(mode, "names")) { // escapes for terminals, and characters that reverse the text direction
    prctl(PR_SET_NAME, "t\x1b[2J\n\xc2\x9b\xe2\x80\xae");
    FILE *f = perf_map();
    fprintf(f, "700000000000 1000 evil\x1b[31m\xc2\x9b\xe2\x80\xae\xe2\x81\xa6name\n");
    fclose(f);
    jit(0x700000000000, 0x1000, 0x80);
  }
  if (!strcmp(mode, "malloc")) { // two threads allocate without pause
    pthread_t other;
    if (pthread_create(&other, NULL, evil_malloc, NULL))
      return 1;
    evil_malloc(NULL);
  }
  if (!strcmp(mode, "allocate")) // 1,000 times a second
    good_malloc();
  if (!strcmp(mode, "stacks")) // threads whose waits have distinct stacks
    threads(7, evil_stacks), evil_stacks(NULL);
  if (!strcmp(mode, "processes")) { // brief ones, in place of threads
    signal(SIGCHLD, SIG_IGN);
    threads(7, evil_processes), evil_processes(NULL);
  }
  if (!strcmp(mode, "waits"))
    good_waits();
  if (!strcmp(mode, "futex"))
    threads(7, evil_futex), evil_futex(NULL);
  if (!strcmp(mode, "threads")) // 10,000 at once, repeatedly
    for (;; usleep(12000000))
      threads(10000, evil_sleep);
  if (!strcmp(mode, "context"))
    evil_context();
  if (!strcmp(mode, "evil"))
    evil_work();
  good_work();
  __asm__ volatile("" : : : "memory"); // no tail call
  return 0;
}
