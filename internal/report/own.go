package report

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// Own returns the index of the first frame from the leaf that is the program's own. Frames of the kernel, the C library,
// allocators, runtimes, interpreters and the system's or language's libraries do not count. Every waiting thread is in one of a
// few such functions, and all memory comes from malloc. Only the callers differ. Own judges a frame without a name by its file.
// Without any own frame, found is false. Own then returns the first named frame outside the kernel, else the first frame outside
// the kernel, else the leaf.
//
// It uses frame types, files and names, so it must guess if a file is unknown.
func Own(stack []receiver.Frame) (i int, found bool) {
	if i = slices.Index(ownFrames(stack), true); i >= 0 {
		return i, true
	}
	outside, machine := -1, Interpreter(stack)
	for i, f := range stack {
		if f.Type == "kernel" || machine != nil && machine[i] {
			continue
		}
		if f.Name != "" && !strings.HasPrefix(f.Name, "[") {
			return i, false
		}
		if outside < 0 {
			outside = i
		}
	}
	return max(outside, 0), false
}

// HasOwn reports whether any stack contains one of the program's own functions.
func HasOwn(samples []receiver.Sample) bool {
	return slices.ContainsFunc(samples, func(s receiver.Sample) bool {
		_, found := Own(s.Stack)
		return found
	})
}

// ownFrames returns which frames of a stack are the program's own.
func ownFrames(stack []receiver.Frame) []bool {
	own, machine := make([]bool, len(stack)), Interpreter(stack)
	// The native functions below interpreted ones are the interpreter's.
	inInterpreter := slices.ContainsFunc(stack, func(f receiver.Frame) bool { return slices.Contains(interpreted, f.Type) })
	for i, f := range stack {
		own[i] = f.Type != "kernel" && (machine == nil || !machine[i]) && !foreign(f) && (!inInterpreter || f.Type != "native")
	}
	return own
}

// foreign reports whether a frame outside the kernel belongs to a library or a runtime.
func foreign(f receiver.Frame) bool {
	switch f.Type {
	case "cpython", "ruby", "php", "perl":
		return strings.HasPrefix(f.File, "<frozen ") || systemFile(f.File)
	case "jvm":
		name, _ := qualified(f.Name) // it begins with the method's return type
		return ofVM(f) || hasPrefix(name, "java.", "javax.", "jdk.", "sun.", "com.sun.")
	case "v8js":
		return ofVM(f) || nodeFile(f.File)
	case "dotnet":
		name, _ := qualified(f.Name)
		return strings.HasPrefix(name, "System.")
	case "go":
		return standardGo(f.Name)
	}
	// The system's files also include programs, for example /usr/lib/postgresql/15/bin/postgres.
	if systemFile(f.Mapping) && strings.Contains(path.Base(f.Mapping), ".so") || strings.HasPrefix(f.Mapping, "[vd") || sharedLibrary(f.Mapping) {
		return true
	}
	if f.Name == "" {
		return f.Mapping == "" || strings.HasPrefix(f.Mapping, "[") || IsInterpreter(f.Mapping)
	}
	if strings.HasPrefix(f.Name, "[") { // missing frames
		return true
	}
	name := strings.TrimLeft(f.Name, "_")
	plain, _ := qualified(name)
	// Not every gadget recognizes Go functions.
	return IsInterpreter(f.Mapping) || hasPrefix(f.Name, "runtime.", "internal/", "sync.(", "syscall.Syscall") || f.Name == "_start" || slices.Contains(waiting, name) || allocates(plain) || standardNative(f.Name) ||
		hasPrefix(f.Name, "_PyEval", "Py", "_Py", "__libc_", "__GI_")
}

// allocating matches functions of allocators that are linked into a program, and wrappers with names that many programs use. A
// wrapper with another name counts as one of the program's own functions.
var allocating = regexp.MustCompile(`^(do_)?(x2?n?|xi|[ezp]|g_(try_)?|ck_|safe_|je_|mi_|ngx_|rjem_|tc_|bfd_|sqlite3_)?([cmpvz]|re)alloc(0|x|array)?$|^(aligned_alloc|(posix_)?memalign|[xe]?(mem|strn?)dup|g_(mem|strn?)dup2?)$`)

// allocates reports whether allocating matches a name. The search for substrings avoids the slow expression for most names.
func allocates(name string) bool {
	return (strings.Contains(name, "alloc") || strings.Contains(name, "memalign") || strings.Contains(name, "dup")) && allocating.MatchString(name)
}

// standardNative reports whether a function belongs to the standard library of C++ or Rust. Programs contain compiled parts of
// these libraries. Compilers inline a thread's function into the part that calls it, so that part is the program's own.
func standardNative(name string) bool {
	if hasPrefix(name, "operator new", "operator delete", "__rust_", "__rdl_", "__rg_") {
		return true
	}
	name, arguments := qualified(name)
	if strings.HasPrefix(name, "std::thread::_State_impl<") || strings.HasSuffix(name, "_rust_begin_short_backtrace") {
		return false
	}
	name = strings.TrimPrefix(name, "<")
	// Rust's names have no arguments. C++ programs can also have namespaces called core.
	return hasPrefix(name, "std::", "__gnu_cxx::") || !arguments && hasPrefix(name, "alloc::", "core::", "hashbrown::")
}

// qualified returns a readable name without arguments and return type. Names of C++ templates begin with a return type. It also
// returns whether there were arguments.
func qualified(name string) (without string, arguments bool) {
	start, depth := 0, 0
	for i, c := range name {
		switch c {
		case '<', '[', '{':
			depth++
		case '>', ']', '}':
			depth--
		case ' ':
			if depth == 0 {
				start = i + 1
			}
		case '(':
			if depth == 0 && i > start { // a name can begin with "(anonymous namespace)"
				return name[start:i], true
			}
			depth++
		case ')':
			depth--
		}
	}
	return name[start:], false
}

// waiting are functions of C libraries in which programs wait, for stacks without known files.
var waiting = []string{
	"accept", "accept4", "clock_nanosleep", "connect", "epoll_pwait", "epoll_wait", "fdatasync", "flock", "fsync", "futex_abstimed_wait_common",
	"futex_abstimed_wait_common64", "futex_abstimed_wait_cancelable64", "futex_wait", "lll_lock_wait", "nanosleep", "poll", "ppoll", "pread64",
	"pselect", "pthread_clockjoin_ex", "pthread_cond_clockwait", "pthread_cond_timedwait", "pthread_cond_wait", "pthread_mutex_lock",
	"pthread_rwlock_rdlock", "pthread_rwlock_wrlock", "pwrite64", "read", "recv", "recvfrom", "recvmsg", "select", "sem_clockwait",
	"sem_timedwait", "sem_wait", "send", "sendmsg", "sendto", "sigtimedwait", "sigwait", "sleep", "syscall", "syscall_cancel",
	"internal_syscall_cancel", "syscall_cancel_arch", "usleep", "wait4", "waitid", "waitpid", "write", "writev",
}

func hasPrefix(s string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

// systemFile reports whether a file belongs to the system or the language. Files in /usr/local are
// the user's own programs, except for the interpreters' libraries.
func systemFile(file string) bool {
	return hasPrefix(file, "/usr/lib", "/lib/", "/lib64/", "/usr/share/") || strings.Contains(file, "/lib/python") && !strings.Contains(file, "-packages/")
}

// nodeFile reports whether a script is one of Node.js's own. Their names are for example node:buffer, buffer and
// internal/timers. A program's scripts have paths or URLs as names.
func nodeFile(file string) bool {
	return strings.HasPrefix(file, "node:") || file != "" && path.Ext(file) == "" && !strings.HasPrefix(file, "/") && !strings.ContainsAny(file, ":[<")
}

// sharedLibrary reports whether a mapping is the C library, an allocator or a similar library, judging by its file name.
func sharedLibrary(mapping string) bool {
	return hasPrefix(path.Base(mapping), "linux-vdso", "ld-linux", "ld-musl", "libc.", "libc-", "libc++", "libpthread", "libm.", "libstdc++", "libgcc_s", "libjemalloc",
		"libtcmalloc", "libmimalloc", "libjli", "libnio", "libnet.")
}

// standardGo reports whether a Go function belongs to the standard library or the runtime, judging by the first element of its
// import path.
func standardGo(name string) bool {
	first, _, nested := strings.Cut(name, "/")
	if !nested {
		first, _, _ = strings.Cut(name, ".")
	}
	return slices.Contains(goRoots, first)
}

// goRoots are the first elements of standard library import paths that occur in stacks.
var goRoots = []string{
	"archive", "bufio", "bytes", "cmp", "compress", "container", "context", "crypto", "database", "encoding", "errors", "expvar", "flag",
	"fmt", "go", "hash", "html", "image", "index", "internal", "io", "iter", "log", "maps", "math", "mime", "net", "os", "path", "reflect",
	"regexp", "runtime", "slices", "sort", "strconv", "strings", "sync", "syscall", "testing", "text", "time", "unicode", "unique", "vendor",
}
