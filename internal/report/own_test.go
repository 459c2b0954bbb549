package report

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

func TestOwn(t *testing.T) {
	kernel := receiver.Frame{Name: "schedule", Type: "kernel"}
	tests := []struct {
		name  string
		own   string
		stack []receiver.Frame
	}{
		{"C, by the file", "take_order", []receiver.Frame{kernel,
			{Name: "pthread_cond_wait", Type: "native", Mapping: "/usr/lib/x86_64-linux-gnu/libc.so.6"},
			{Name: "take_order", Type: "native", Mapping: "/srv/shop"}}},
		{"the vDSO", "take_order", []receiver.Frame{{Name: "__vdso_clock_gettime", Type: "native", Mapping: "linux-vdso.1.so"}, {Name: "take_order", Type: "native", Mapping: "/srv/shop"}}},
		{"C, by the name", "take_order", []receiver.Frame{kernel, {Name: "__GI___clock_nanosleep", Type: "native"}, {Name: "usleep", Type: "native"}, {Name: "take_order", Type: "native"}}},
		{"a program among the system's files", "AllocSetAlloc", []receiver.Frame{
			{Name: "malloc", Type: "native", Mapping: "/usr/lib/x86_64-linux-gnu/libc.so.6"},
			{Name: "AllocSetAlloc", Type: "native", Mapping: "/usr/lib/postgresql/15/bin/postgres"},
			{Name: "main", Type: "native", Mapping: "/usr/lib/postgresql/15/bin/postgres"}}},
		{"an allocator within the program", "read_page", []receiver.Frame{
			{Name: "__libc_malloc", Type: "native", Mapping: "/srv/static"}, {Name: "operator new(unsigned long)", Type: "native", Mapping: "/srv/static"},
			{Name: "read_page", Type: "native", Mapping: "/srv/static"}}},
		{"a wrapper of malloc", "read_page", []receiver.Frame{
			{Name: "malloc", Type: "native", Mapping: "/usr/lib/x86_64-linux-gnu/libc.so.6"}, {Name: "do_xmalloc", Type: "native", Mapping: "/srv/shop"},
			{Name: "xmalloc(unsigned long)", Type: "native", Mapping: "/srv/shop"}, {Name: "read_page", Type: "native", Mapping: "/srv/shop"}}},
		{"a function that allocates for the program's own purpose", "table_realloc", []receiver.Frame{
			{Name: "realloc", Type: "native", Mapping: "/usr/lib/x86_64-linux-gnu/libc.so.6"}, {Name: "table_realloc", Type: "native", Mapping: "/srv/shop"},
			{Name: "main", Type: "native", Mapping: "/srv/shop"}}},
		{"C++'s templates", "Shop::fill()", []receiver.Frame{
			{Name: "malloc", Type: "native", Mapping: "/usr/lib/x86_64-linux-gnu/libc.so.6"},
			{Name: "void std::vector<int, std::allocator<int> >::_M_realloc_insert<int>(int&&)", Type: "native", Mapping: "/srv/shop"},
			{Name: "__gnu_cxx::new_allocator<int>::allocate(unsigned long)", Type: "native", Mapping: "/srv/shop"},
			{Name: "Shop::fill()", Type: "native", Mapping: "/srv/shop"}}},
		{"a thread's function that the compiler put into C++'s library", "std::thread::_State_impl<std::thread::_Invoker<std::tuple<main::{lambda()#1}> > >::_M_run()", []receiver.Frame{kernel,
			{Name: "usleep", Type: "native", Mapping: "/usr/lib/x86_64-linux-gnu/libc.so.6"},
			{Name: "std::thread::_State_impl<std::thread::_Invoker<std::tuple<main::{lambda()#1}> > >::_M_run()", Type: "native", Mapping: "/srv/shop"},
			{Type: "native", Mapping: "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30", Address: 5}}},
		{"a thread's function that the compiler put into Rust's library", "std::sys::backtrace::_rust_begin_short_backtrace", []receiver.Frame{kernel,
			{Name: "std::thread::functions::sleep", Type: "native", Mapping: "/srv/shop"}, {Name: "std::sys::backtrace::_rust_begin_short_backtrace", Type: "native", Mapping: "/srv/shop"},
			{Name: "core::ops::function::FnOnce::call_once{{vtable.shim}}", Type: "native", Mapping: "/srv/shop"}}},
		{"a function of the program that gives a vector", "std::vector<int> Shop::all()", []receiver.Frame{
			{Name: "std::vector<int> Shop::all()", Type: "native", Mapping: "/srv/shop"}, {Name: "main", Type: "native", Mapping: "/srv/shop"}}},
		{"Rust", "<shop::Order as core::clone::Clone>::clone", []receiver.Frame{
			{Name: "malloc", Type: "native", Mapping: "/usr/lib/x86_64-linux-gnu/libc.so.6"}, {Name: "__rust_alloc", Type: "native", Mapping: "/srv/shop"},
			{Name: "alloc::raw_vec::RawVec<T,A>::grow_one", Type: "native", Mapping: "/srv/shop"},
			{Name: "<alloc::string::String as core::clone::Clone>::clone", Type: "native", Mapping: "/srv/shop"},
			{Name: "<shop::Order as core::clone::Clone>::clone", Type: "native", Mapping: "/srv/shop"}, {Name: "shop::fill", Type: "native", Mapping: "/srv/shop"}}},
		{"Go", "shop.example/orders.(*Queue).Take", []receiver.Frame{kernel, {Name: "runtime.futex", Type: "go"}, {Name: "sync.(*Mutex).Lock", Type: "go"},
			{Name: "internal/poll.(*FD).Read", Type: "go"}, {Name: "shop.example/orders.(*Queue).Take", Type: "go"}, {Name: "main.main", Type: "go"}}},
		{"Python", "take", []receiver.Frame{kernel, {Name: "lock_acquire", Type: "native", Mapping: "/usr/bin/python3.11"},
			{Name: "wait", Type: "cpython", File: "/usr/lib/python3.11/threading.py"}, {Name: "take", Type: "cpython", File: "/srv/shop/orders.py"}}},
		{"Java", "shop.Orders.take", []receiver.Frame{kernel, {Name: "java.lang.Object.wait", Type: "jvm"}, {Name: "shop.Orders.take", Type: "jvm"}}},
		{"Java, with return types", "void shop.Orders.take(int)", []receiver.Frame{kernel, {Name: "void java.lang.Object.wait(long)", Type: "jvm"},
			{Name: "java.util.List sun.nio.ch.Net.poll(java.lang.Object)", Type: "jvm"}, {Name: "void shop.Orders.take(int)", Type: "jvm"}}},
		{"Python in a folder of its own", "take", []receiver.Frame{kernel,
			{Name: "wait", Type: "cpython", File: "/root/.pyenv/versions/3.12.1/lib/python3.12/threading.py"}, {Name: "take", Type: "cpython", File: "/srv/shop/orders.py"}}},
		{"a package of Python that the program brings", "route", []receiver.Frame{
			{Name: "decode", Type: "cpython", File: "/opt/lib/python3.12/json/decoder.py"}, {Name: "route", Type: "cpython", File: "/opt/lib/python3.12/site-packages/flask/app.py"},
			{Name: "take", Type: "cpython", File: "/srv/shop/orders.py"}}},
		{"an allocator that the program brings", "fill", []receiver.Frame{
			{Name: "do_alloc", Type: "native", Mapping: "/opt/shop/lib/libjemalloc.so.2"}, {Name: "fill", Type: "native", Mapping: "/srv/shop"}}},
		{"Go, by a gadget that does not know it", "main.take", []receiver.Frame{kernel, {Name: "runtime.futex.abi0", Type: "native", Mapping: "/srv/shop"},
			{Name: "sync.(*Mutex).lockSlow", Type: "native", Mapping: "/srv/shop"}, {Name: "main.take", Type: "native", Mapping: "/srv/shop"}}},
		{"a stripped program", "", []receiver.Frame{
			{Name: "malloc", Type: "native", Mapping: "/usr/lib/libc.so.6"}, {Type: "native", Mapping: "/srv/shop", Address: 5}, {Name: "main", Type: "native", Mapping: "/srv/shop"}}},
		{"Python's allocations, by its own functions alone", "realloc", []receiver.Frame{
			{Name: "realloc", Type: "native", Mapping: "/usr/lib/libc.so.6"}, {Name: "list_resize", Type: "native", Mapping: "/usr/bin/python3.11"},
			{Name: "_start", Type: "native", Mapping: "/usr/bin/python3.11"}, {Name: "[incomplete]"}}},
		{"a stack that is cut off", "recv", []receiver.Frame{kernel, {Name: "recv", Type: "native", Mapping: "/usr/lib/libc.so.6"}, {Name: "[truncated]"}}},
		{"an interpreter without symbols", "realloc", []receiver.Frame{
			{Name: "realloc", Type: "native", Mapping: "/usr/lib/x86_64-linux-gnu/libc.so.6"}, {Type: "native", Mapping: "/usr/bin/python3.11", Address: 5},
			{Name: "Py_BytesMain", Type: "native", Mapping: "/usr/bin/python3.11"}, {Name: "_start", Type: "native", Mapping: "/usr/bin/python3.11"}}},
		{"libc without names", "[libc.so.6]", []receiver.Frame{kernel, {Type: "native", Mapping: "/usr/lib/libc.so.6", Address: 5}, {Name: "[truncated]"}}},
		{"Node.js, cut off", "calloc", []receiver.Frame{
			{Name: "calloc", Type: "native", Mapping: "/usr/lib/libc.so.6"}, {Name: "V8::BuiltinExitFrame", Type: "v8js"}, {Name: "[truncated]"}}},
		{"Node.js's own scripts", "createUnsafeBuffer", []receiver.Frame{kernel, {Name: "uv_run", Type: "native", Mapping: "/usr/bin/node"},
			{Name: "createUnsafeBuffer", Type: "v8js", File: "buffer"}, {Name: "listOnTimeout", Type: "v8js", File: "node:internal/timers"}, {Name: "run", Type: "v8js", File: "internal/process/task_queues"}}},
		{"Node.js", "take", []receiver.Frame{kernel, {Name: "createUnsafeBuffer", Type: "v8js", File: "buffer"}, {Name: "take", Type: "v8js", File: "file:///srv/shop"}}},
		{"nothing of its own", "nanosleep", []receiver.Frame{kernel, {Name: "nanosleep", Type: "native"}, {Type: "native", Address: 5}}},
		{"the kernel alone", "schedule", []receiver.Frame{kernel, {Name: "worker_thread", Type: "kernel"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			i, found := Own(tt.stack)
			require.Equal(t, !slices.Contains([]string{"realloc", "nanosleep", "schedule", "recv", "calloc", "createUnsafeBuffer", "[libc.so.6]"}, tt.own), found)
			if tt.own == "" {
				require.Equal(t, "/srv/shop", tt.stack[i].Mapping)
				return
			}
			require.Equal(t, tt.own, label(tt.stack[i]))
		})
	}
}

func TestStandardGo(t *testing.T) {
	for name, standard := range map[string]bool{
		"runtime.mallocgc": true, "net/http.(*conn).serve": true, "internal/poll.(*FD).Read": true, "sort.Slice": true,
		"main.main": false, "example.com/net/http.Serve": false, "shop/orders.Take": false, "cmd/compile/internal/ssa.Compile": false, "orders": false,
	} {
		require.Equal(t, standard, standardGo(name), name)
	}
}

func TestUnit(t *testing.T) {
	require.Equal(t, "SECONDS", Unit(timer))
	require.Equal(t, "SECONDS", Unit(receiver.Type{Type: "off_cpu", Unit: "nanoseconds"}))
	require.Equal(t, "FAULTS", Unit(receiver.Type{Type: "page_faults", Unit: "count"}))
	require.Equal(t, "BYTES", Unit(receiver.Type{Type: "alloc_space", Unit: "bytes"}))
	require.Equal(t, "COUNT", Unit(receiver.Type{}))
}
