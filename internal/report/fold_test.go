package report

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

func TestFold(t *testing.T) {
	python := receiver.Frame{Name: "take", Type: "cpython", File: "/srv/shop/orders.py"}
	eval := receiver.Frame{Name: "_PyEval_EvalFrameDefault", Type: "native", Mapping: "/usr/bin/python3.11"}
	library := receiver.Frame{Name: "list_sort", Type: "native", Mapping: "/usr/lib/libpython3.11.so.1.0"}
	nowhere := receiver.Frame{Type: "native", Address: 5}
	deflate := receiver.Frame{Name: "deflate", Type: "native", Mapping: "/usr/lib/libz.so.1"}
	nameless := receiver.Frame{Type: "native", Mapping: "/usr/lib/libz.so.1", Address: 5}
	kernel := receiver.Frame{Name: "read", Type: "kernel"}
	js := receiver.Frame{Name: "hashOrders", Type: "v8js", File: "/srv/shop.js"}
	trampoline := receiver.Frame{Name: "V8::EntryFrame", Type: "v8js"}
	builtin := receiver.Frame{Name: "Builtins_InterpreterEntryTrampoline", Type: "native", Mapping: "/usr/bin/node"}
	java := receiver.Frame{Name: "Busy.hashOrders", Type: "jvm", File: "Busy.java"}
	noFile := receiver.Frame{Name: "shop.Orders$$Lambda.run", Type: "jvm"}
	blob := receiver.Frame{Name: "StubRoutines (initial stubs) [call_stub_entry]", Type: "jvm"}
	collector := receiver.Frame{Name: "G1ParScanThreadState::trim_queue", Type: "native", Mapping: "/usr/lib/jvm/lib/server/libjvm.so"}
	main := receiver.Frame{Name: "__libc_start_main", Type: "native", Mapping: "/usr/lib/libc.so.6"}
	for name, tt := range map[string]struct{ stack, want []receiver.Frame }{
		"CPython's loop":                {[]receiver.Frame{nowhere, eval, python, eval, python, eval, main}, []receiver.Frame{python, python, main}},
		"what is built into it":         {[]receiver.Frame{library, python}, []receiver.Frame{python}},
		"a library that it calls":       {[]receiver.Frame{deflate, eval, python}, []receiver.Frame{deflate, python}},
		"a library without names":       {[]receiver.Frame{nameless, python}, []receiver.Frame{nameless, python}},
		"the kernel":                    {[]receiver.Frame{kernel, eval, python}, []receiver.Frame{kernel, python}},
		"V8":                            {[]receiver.Frame{builtin, js, trampoline, builtin}, []receiver.Frame{js}},
		"the JVM":                       {[]receiver.Frame{java, noFile, blob, collector}, []receiver.Frame{java, noFile}},
		"the JVM's own thread":          {[]receiver.Frame{collector, main}, []receiver.Frame{collector, main}},
		"a stub that executes nothing":  {[]receiver.Frame{blob, collector}, []receiver.Frame{blob, collector}},
		"an interpreter that says none": {[]receiver.Frame{nowhere, eval}, []receiver.Frame{nowhere, eval}},
		"nothing":                       {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			samples := []receiver.Sample{{Stack: tt.stack, Values: []int64{3}}}
			got := Fold(samples)
			require.Equal(t, tt.want, got[0].Stack)
			require.Equal(t, tt.stack, samples[0].Stack, "the input is unchanged")
			require.EqualValues(t, 3, got[0].Total())
		})
	}
}

// A function gets the value of the library functions that it calls.
func TestTopOfOwn(t *testing.T) {
	frame := func(name, file string) receiver.Frame {
		return receiver.Frame{Name: name, Type: "native", Mapping: file}
	}
	malloc, grow, fill := frame("malloc", "/usr/lib/libc.so.6"), frame("operator new(unsigned long)", "/srv/shop"), frame("fill", "/srv/shop")
	wait, serve := frame("futex_wait", "/usr/lib/libc.so.6"), frame("serve", "/srv/shop")
	samples := []receiver.Sample{of(timer, "shop", 8, malloc, grow, fill, serve), of(timer, "shop", 30, wait), of(timer, "shop", 2, malloc), of(timer, "shop", 1, serve)}
	amounts := func(rows []Row) (list []string) {
		for _, r := range rows {
			list = append(list, fmt.Sprint(r.Function, " ", r.Self, " ", r.Total))
		}
		return list
	}
	rows := Top(samples, 0, Options{Own: true})
	require.Equal(t, []string{"fill 8 8", "serve 1 9", "[no function of its own] 32 32"}, amounts(rows))
	require.Equal(t, []string{"futex_wait", "malloc"}, rows[2].Ends)
	require.Equal(t, []string{"fill 8 8", "[no function of its own] 32 32"}, amounts(Top(samples, 1, Options{Own: true})))
	require.Equal(t, []string{"futex_wait 30 30", "malloc 2 2"}, amounts(Top(samples[1:3], 0, Options{Own: true})), "no other functions exist")
}

func TestInterpreterFiles(t *testing.T) {
	for file, yes := range map[string]bool{
		"/usr/bin/python3.11": true, "/usr/lib/libpython3.11.so.1.0": true, "/usr/bin/node": true, "/usr/lib/libnode.so.108": true, "/usr/lib/libruby-3.1.so.3.1": true,
		"/usr/sbin/php-fpm8.2": true, "/usr/lib/jvm/lib/server/libjvm.so": true, "/usr/lib/erlang/bin/beam.smp": true, "/usr/share/dotnet/libcoreclr.so": true,
		"/usr/bin/node_exporter": false, "/srv/perlbench": false, "/usr/lib/python3/dist-packages/_python_snappy.so": false, "": false, "/srv/javascriptd": false,
	} {
		require.Equal(t, yes, IsInterpreter(file), file)
	}
}

// Samples that share a stack must also share the folded stack.
func TestFoldShares(t *testing.T) {
	stack := []receiver.Frame{{Name: "_PyEval_EvalFrameDefault", Type: "native", Mapping: "/usr/bin/python3.11"}, {Name: "take", Type: "cpython"}}
	folded := Fold([]receiver.Sample{{Stack: stack}, {Stack: stack}, {Stack: stack[1:]}, {}})
	require.Equal(t, stack[1:], folded[0].Stack)
	require.Same(t, &folded[0].Stack[0], &folded[1].Stack[0])
	require.Equal(t, stack[1:], folded[2].Stack)
	require.Empty(t, folded[3].Stack)
}
