//go:build e2e

package backends

import (
	"cmp"
	"debug/elf"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pairsWork is the number of loop iterations in one call, which takes tens of microseconds. It changes in each round of calls.
// Otherwise, rounds and samples could synchronize, and some functions would get no samples.
const pairsWork = "10000 + round * 811 % 4096"

// pairsProgram is the source of a program in C or Go. It calls each pair's caller in turn until its standard input ends. Each
// function does the same small amount of work.
func pairsProgram(golang bool) string {
	callers := make([]int, pairs) // by their positions in the file
	for n := range pairs {
		callers[callerPosition(n)] = n
	}
	var b strings.Builder
	if golang {
		fmt.Fprint(&b, "package main\n\nimport (\n\t\"io\"\n\t\"os\"\n\t\"sync/atomic\"\n)\n\nvar sink, work uint64\n")
	} else {
		fmt.Fprint(&b, "#include <poll.h>\nstatic volatile unsigned long sink, work;\n")
	}
	for n := range pairs {
		if golang { // state on the stack: otherwise the function has no frame, and its caller is skipped
			fmt.Fprintf(&b, "\n//go:noinline\nfunc %s%03d() {\n\tstate := [8]uint64{sink}\n\tfor i := range work {\n\t\tstate[i%%8] = state[(i+1)%%8]*31 + i\n\t}\n\tsink = state[0]\n}\n", functionName, n)
		} else {
			fmt.Fprintf(&b, "__attribute__((noinline)) void %s%03d(void) { for (unsigned long i = 0; i < work; i++) sink = sink * 31 + i; }\n", functionName, n)
		}
	}
	for _, n := range callers {
		if golang {
			fmt.Fprintf(&b, "\n//go:noinline\nfunc %s%03d() {\n\tstate := [8]uint64{sink}\n\t%s%03d()\n\tsink += state[work%%8]\n}\n", callerName, n, functionName, n)
		} else {
			fmt.Fprintf(&b, "__attribute__((noinline)) void %s%03d(void) { %s%03d(); sink++; }\n", callerName, n, functionName, n)
		}
	}
	list := ""
	for n := range pairs {
		list += fmt.Sprintf("\t%s%03d,\n", callerName, n)
	}
	if golang {
		fmt.Fprint(&b, "\nvar callers = []func(){\n"+list+"}\n\nfunc main() {\n\tvar ended atomic.Bool\n"+
			"\tgo func() {\n\t\t_, _ = io.Copy(io.Discard, os.Stdin)\n\t\tended.Store(true)\n\t}()\n"+
			"\tfor round := uint64(0); !ended.Load(); round++ {\n\t\twork = "+pairsWork+"\n\t\tfor _, call := range callers {\n\t\t\tcall()\n\t\t}\n\t}\n}\n")
	} else {
		fmt.Fprint(&b, "static void (*const callers[])(void) = {\n"+list+"};\n\nint main(void)\n{\n\tstruct pollfd in = { .fd = 0, .events = POLLIN };\n"+
			"\tfor (unsigned long round = 0; poll(&in, 1, 0) == 0; round++) {\n\t\twork = "+pairsWork+";\n"+
			"\t\tfor (unsigned long i = 0; i < sizeof(callers) / sizeof(*callers); i++)\n\t\t\tcallers[i]();\n\t}\n\treturn 0;\n}\n")
	}
	return b.String()
}

// requireApart makes sure that the test would detect names that are off by one in a compiled program's symbol table. The compiler
// and the linker decide on the order of functions.
func requireApart(t *testing.T, file string) {
	t.Helper()
	parsed, err := elf.Open(file)
	require.NoError(t, err)
	defer func() { require.NoError(t, parsed.Close()) }()
	symbols, err := parsed.Symbols()
	require.NoError(t, err)
	symbols = slices.DeleteFunc(symbols, func(s elf.Symbol) bool { return elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Section == elf.SHN_UNDEF })
	slices.SortFunc(symbols, func(a, b elf.Symbol) int { return cmp.Compare(a.Value, b.Value) })
	var order []string
	prefix, ours := "", 0
	for _, s := range symbols {
		order = append(order, s.Name)
		if pairName.MatchString(s.Name) {
			ours++
		}
		if strings.HasPrefix(s.Name, "main."+functionName) {
			prefix = "main."
		}
	}
	require.Equal(t, pairs, ours, "functions in the symbol table")
	require.Equal(t, pairs, judgePairs(truePairs(prefix)).right)
	slices.Reverse(order)
	require.Zero(t, judgePairs(shifted(truePairs(prefix), order)).right, "names of the previous functions")
	slices.Reverse(order)
	require.Zero(t, judgePairs(shifted(truePairs(prefix), order)).right, "names of the next functions")
}
