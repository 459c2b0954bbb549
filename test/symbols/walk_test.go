//go:build e2e

package symbols

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/cfi"
)

// builds are how the programs are compiled.
func builds(t *testing.T, source string) map[string]string {
	t.Helper()
	path := file(t, "main.cpp", source)
	dir := t.TempDir()
	all := map[string]string{}
	for name, command := range map[string][]string{
		"gcc":        {"g++", "-O2", "-fomit-frame-pointer"},
		"gcc-O0":     {"g++", "-O0"},
		"gcc-now":    {"g++", "-O2", "-fomit-frame-pointer", "-no-pie", "-Wl,-z,now"},
		"gcc-lazy":   {"g++", "-O2", "-fomit-frame-pointer", "-Wl,-z,lazy", "-fcf-protection=none"},
		"gcc-static": {"g++", "-O3", "-static", "-Wl,-z,muldefs"},
		"clang":      {"clang++", "-O2", "-fomit-frame-pointer"},
	} {
		all[name] = filepath.Join(dir, name)
		run(t, "", command[0], append(command[1:], "-fno-optimize-sibling-calls", "-pthread", path, "-o", all[name])...)
	}
	return all
}

const walkedProgram = `
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <stdio.h>
#define FRAME extern "C" __attribute__((noinline))
static volatile int sink;
static volatile int inNew;
static const char *mode;
FRAME void stop() { kill(getpid(), SIGSTOP); while (!strcmp(mode, "thread")) pause(); sink++; }
extern "C" void *__libc_malloc(size_t);
extern "C" void *malloc(size_t n) { if (inNew) { inNew = 0; stop(); } return __libc_malloc(n); }
FRAME int compare(const void *a, const void *b) { stop(); return *(int *)a - *(int *)b; }
FRAME void handler(int) { stop(); sink++; }
FRAME int spin(int n) { while (!strcmp(mode, "timer")) n += sink; return n; }
FRAME void innermost(int n) {
  if (!strcmp(mode, "qsort")) { int all[] = {3, 1, 2, n}; qsort(all, 4, sizeof all[0], compare); sink = all[0]; }
  else if (!strcmp(mode, "bsearch")) { int all[] = {1, 2, 3, 4}; sink = bsearch(&n, all, 4, sizeof all[0], compare) != 0; }
  else if (!strcmp(mode, "signal")) { signal(SIGUSR1, handler); raise(SIGUSR1); }
  else if (!strcmp(mode, "timer")) {
    signal(SIGALRM, handler);
    struct itimerval in = {{0, 0}, {0, 20000}};
    setitimer(ITIMER_REAL, &in, 0);
    sink += spin(n);
  }
  else if (!strcmp(mode, "new")) { inNew = 1; char *c = (char *)::operator new(n + 100); sink = c[0]; ::operator delete(c); }
  else stop();
  sink++;
}
FRAME void third(int n) { char *room = (char *)alloca(n * 16 + 64); memset(room, n, n * 16 + 64); innermost(n + room[3]); sink += room[n]; }
FRAME void second(int n) { char room[2000]; memset(room, n, sizeof room); third(n + 1); sink += room[n]; }
FRAME void first(int n, long a, long b, long c, long d, long e, long f, long g, long h) { second(n + 1); sink += a + b + c + d + e + f + g + h; }
FRAME void *thread(void *) { first(1, 2, 3, 4, 5, 6, 7, 8, 9); sink++; return 0; }
FRAME void onlyStep() {
  char text[100]; struct timespec now; int all[] = {5, 4, 3, 2, 1};
  kill(getpid(), SIGSTOP);
  mode = "none";
  struct by { static int f(const void *a, const void *b) { return *(int *)a - *(int *)b; } };
  qsort(all, 5, sizeof all[0], by::f);
  clock_gettime(CLOCK_MONOTONIC, &now);
  snprintf(text, sizeof text, "%d %s %5.2f", all[0], "text", 1.5);
  sink += atoi(text) + strlen(text) + (getenv("HOME") != 0);
  char *s = strdup(text); sink += strtol(s, 0, 10); free(s);
  int *p = new int[20]; sink += p[3]; delete[] p;
  try { if (sink >= 0) throw 3; } catch (int n) { sink += n; }
  kill(getpid(), SIGSTOP);
}
int main(int argc, char **argv) {
  mode = argv[1];
  if (!strcmp(mode, "step")) { onlyStep(); return 0; }
  if (!strcmp(mode, "thread")) { pthread_t t; pthread_create(&t, 0, thread, 0); pthread_join(t, 0); return 0; }
  first(1, 2, 3, 4, 5, 6, 7, 8, 9);
  return 0;
}
`

// The stack of a program that has stopped itself where it knows who has called whom: through the C library and
// the C++ library, behind a signal that has come from itself and one that has come in the middle of a function.
func TestWalk(t *testing.T) {
	outer := []string{"innermost", "third", "second", "first", "main"}
	for build, path := range builds(t, walkedProgram) {
		for mode, inner := range map[string][]string{
			"plain": {"stop"}, "qsort": {"stop", "compare"}, "bsearch": {"stop", "compare"},
			"signal": {"stop", "handler"}, "timer": {"stop", "handler", "spin"}, "new": {"stop", "malloc"},
		} {
			t.Run(build+"/"+mode, func(t *testing.T) {
				w := startWalked(t, path, mode)
				ips, end := w.walk()
				require.Equal(t, cfi.Outermost, end, w.where(ips))
				names := slices.DeleteFunc(w.functions(ips), func(n string) bool { return !slices.Contains(append(inner, outer...), n) && n != "_start" })
				require.Equal(t, append(append(slices.Clone(inner), outer...), "_start"), names, w.where(ips))
				if build != "gcc-static" {
					require.Greater(t, len(ips), len(names), "the C library has to be among them")
				}
			})
		}
	}
}

// A thread's stack ends where the C library has started it.
func TestWalkThread(t *testing.T) {
	for build, path := range builds(t, walkedProgram) {
		t.Run(build, func(t *testing.T) {
			w := startWalked(t, path, "thread")
			threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", w.pid))
			require.NoError(t, err)
			require.Len(t, threads, 2)
			w.thread, err = strconv.Atoi(threads[1].Name())
			require.NoError(t, err)
			require.NoError(t, unix.PtraceAttach(w.thread))
			_, err = unix.Wait4(w.thread, nil, unix.WALL, nil)
			require.NoError(t, err)
			ips, end := w.walk()
			require.Equal(t, cfi.Outermost, end, w.where(ips))
			names := w.functions(ips)
			if build == "gcc-static" { // the C library is in it
				names = names[max(0, slices.Index(names, "stop")):]
				names = names[:min(len(names), 6)]
			}
			require.Equal(t, []string{"stop", "innermost", "third", "second", "first", "thread"}, names, w.where(ips))
		})
	}
}

// At every single instruction of a while the walk is right: as many calls as were seen, and their return addresses.
// So it is at the first and the last instructions of functions, in the stubs between libraries, while those are bound,
// while an exception is thrown, and in the kernel's code. A copy that begins with the stack pointer does, too.
func TestWalkEachInstruction(t *testing.T) {
	for build, path := range builds(t, walkedProgram) {
		for _, below := range []uint64{0, 128} {
			if below != 0 && build != "gcc" {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", build, below), func(t *testing.T) { walkEachInstruction(t, path, below, build != "gcc-static") })
		}
	}
}

// call is one that is seen: where it returns to, and where on the stack that stands.
type call struct{ to, at uint64 }

func walkEachInstruction(t *testing.T, path string, below uint64, libraries bool) {
	w := startWalked(t, path, "step")
	w.below = below
	before, stack := w.registers()
	ips, sps, end := w.walkFrom(before, stack)
	require.Equal(t, cfi.Outermost, end, w.where(ips))
	var calls []call // the outermost first
	for i := len(ips) - 1; i > 0; i-- {
		calls = append(calls, call{ips[i], sps[i] - 8})
	}
	steps, wrong, rewritten, seen, deepest := 0, 0, 0, map[string]int{}, 0
	var problems strings.Builder
	for ; steps < 60_000; steps++ {
		require.NoError(t, unix.PtraceSingleStep(w.pid))
		var status unix.WaitStatus
		_, err := unix.Wait4(w.pid, &status, unix.WALL, nil)
		require.NoError(t, err)
		require.True(t, status.Stopped())
		if status.StopSignal() == unix.SIGSTOP {
			break
		}
		require.Equal(t, unix.SIGTRAP, status.StopSignal())
		now, stack := w.registers()
		leaving := false
		for len(calls) > 0 && calls[len(calls)-1].at < now.SP() { // a return, or an exception that has not got there
			leaving = now.IP() != calls[len(calls)-1].to
			calls = calls[:len(calls)-1]
		}
		if top, _ := stack.Word(now.SP()); now.SP() == before.SP()-8 && top-before.IP() >= 2 && top-before.IP() <= 8 && now.IP() != top {
			calls = append(calls, call{top, now.SP()})
		}
		before = now
		if leaving || slices.ContainsFunc(calls, func(c call) bool { to, _ := stack.Word(c.at); return to != c.to }) {
			rewritten++ // who throws an exception makes a function return elsewhere
			continue
		}
		deepest = max(deepest, len(calls))
		if area := w.area(now.IP()); area != nil {
			seen[filepath.Base(area.path)]++
		}
		ips, _, end := w.walkFrom(now, stack)
		right := end == cfi.Outermost && len(ips) == len(calls)+1
		for i := 1; right && i < len(ips); i++ {
			right = ips[i] == calls[len(calls)-i].to
		}
		if !right {
			if wrong++; wrong < 8 {
				fmt.Fprintf(&problems, "%v, %d frames instead of %d:\n%s", end, len(ips)-1, len(calls), w.where(ips))
			}
		}
	}
	t.Logf("%d of %d instructions wrong, and %d with other return addresses than those of the calls; at most %d calls; in %v", wrong, steps, rewritten, deepest, seen)
	require.Zero(t, wrong, problems.String())
	require.Greater(t, steps, 3000)
	require.Less(t, rewritten, steps/100)
	if libraries {
		require.Positive(t, seen["libc.so.6"])
	}
}
