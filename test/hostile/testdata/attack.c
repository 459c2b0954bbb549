// attack MODE spins in a function of its own, after it has made what its mode is about.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, used))

static volatile uint64_t sum;

NOINLINE void good_work(void) {
  for (;;)
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
    for (int i = 0; i < 100; i++) {
      void *p = malloc(16384);
      __asm__ volatile("" : : "r"(p) : "memory");
      free(p);
    }
    usleep(20000);
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
  const char *mode = argc > 1 ? argv[1] : "good";
  if (!strcmp(mode, "perfmap")) { // one long name in very many pieces
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
  if (!strcmp(mode, "names")) { // what terminals obey, and what turns the direction of text
    prctl(PR_SET_NAME, "t\x1b[2J\n\xc2\x9b\xe2\x80\xae");
    FILE *f = perf_map();
    fprintf(f, "700000000000 1000 evil\x1b[31m\xc2\x9b\xe2\x80\xae\xe2\x81\xa6name\n");
    fclose(f);
    jit(0x700000000000, 0x1000, 0x80);
  }
  if (!strcmp(mode, "malloc")) { // two threads that allocate without pause
    pthread_t other;
    if (pthread_create(&other, NULL, evil_malloc, NULL))
      return 1;
    evil_malloc(NULL);
  }
  if (!strcmp(mode, "allocate")) // 5,000 times a second
    good_malloc();
  if (!strcmp(mode, "evil"))
    evil_work();
  good_work();
}
