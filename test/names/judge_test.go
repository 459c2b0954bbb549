//go:build e2e

package names

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// verdict holds the findings about a load. A frame counts once per sample.
type verdict struct {
	bars
	shared              shared
	what                string
	samples             int64
	frames, named, file int64
	rest                map[string]int64 // frames with neither, by their labels
	tools               int64            // frames that other tools have a name for
	missed              int64            // frames that have a name there but none here
	stripped            int64            // frames without a name in files without a symbol table
	places              compared
	generated           compared // names of generated code, which is in no file
	wrongs              []string
}

// compared counts distinct addresses, or names, by the comparison with other tools.
type compared struct {
	same   int // name
	none   int // no name anywhere
	more   int // a name that other tools do not have
	missed int // no name, but other tools have one
	wrong  int
}

func (c compared) all() int { return c.same + c.none + c.more + c.missed + c.wrong }

func (v *verdict) percent(n int64) float64 { return 100 * float64(n) / float64(max(v.frames, 1)) }

func (v *verdict) String() string {
	return fmt.Sprintf("%-45s %6d samples: named %.2f %%, file only %.2f %% (%.2f %% in stripped files), rest %v; %d addresses %+v; generated %+v; shares %s",
		v.what, v.samples, v.percent(v.named), v.percent(v.file), v.percent(v.stripped), v.rest, v.places.all(), v.places, v.generated, v.shared)
}

// require checks that a load meets its requirements.
func (v *verdict) require(t *testing.T) {
	t.Helper()
	require.GreaterOrEqual(t, v.samples, int64(minSamples), v.what)
	require.Empty(t, v.wrongs, v.what)
	require.Zero(t, v.places.more, "%s: addresses with a name in this project only", v.what)
	require.GreaterOrEqual(t, v.percent(v.named+v.file), v.bars.file, "%s: name or file", v.what)
	if v.names {
		require.GreaterOrEqual(t, v.percent(v.named), barNames, "%s: names", v.what)
	}
	if v.many {
		require.GreaterOrEqual(t, v.places.all(), minAddresses, "%s: distinct addresses", v.what)
	}
	v.shared.require(t)
	require.LessOrEqual(t, v.percent(v.missed), 2.0, "%s: frames that only other tools have a name for", v.what)
}

// inBrackets reports whether a name is only a placeholder.
func inBrackets(name string) bool {
	return strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]")
}

// known reports whether a frame has a name, and whether it has a file. The file is in the mapping, or in brackets as the name.
func known(f receiver.Frame) (name, file bool) {
	return f.Name != "" && !inBrackets(f.Name), f.Mapping != "" || inBrackets(f.Name) && f.Name != "[unknown]" && f.Name != "[generated code]"
}

// symbol returns the frame's name as it is in the symbol table.
func symbol(f receiver.Frame) string {
	if f.SystemName != "" {
		return f.SystemName
	}
	return f.Name
}

// judge compares the names of a load's frames with other tools. pid is the load's process.
func judge(t *testing.T, what string, pid int, all frames) *verdict {
	t.Helper()
	v := &verdict{what: what, rest: map[string]int64{}}
	files := map[string]frames{}
	generated := map[string]bool{}
	for f, n := range all {
		v.frames += n
		hasName, hasFile := known(f)
		switch {
		case hasName:
			v.named += n
		case hasFile:
			v.file += n
		default:
			v.rest[f.Name] += n
		}
		switch {
		case f.Mapping != "":
			require.NotZero(t, f.Address)
			if files[f.Mapping] == nil {
				files[f.Mapping] = frames{}
			}
			files[f.Mapping][f] = n
		case hasName:
			generated[symbol(f)] = true
		}
	}
	for path, there := range files {
		v.check(t, path, there)
	}
	if len(generated) > 0 {
		v.checkGenerated(t, pid, generated)
	}
	return v
}

// check compares the names of all frames in a file with other tools' names for the same addresses.
func (v *verdict) check(t *testing.T, path string, all frames) {
	t.Helper()
	table, err := readSymbols(t.Context(), path)
	require.NoError(t, err)
	places := map[uint64][]receiver.Frame{}
	var addrs, unsure []uint64
	for f := range all {
		if places[f.Address] == nil {
			addrs = append(addrs, f.Address)
			if name, _ := known(f); name && len(table.at(f.Address)) == 0 {
				unsure = append(unsure, f.Address)
			}
		}
		places[f.Address] = append(places[f.Address], f)
	}
	slices.Sort(addrs)
	ofGo, ofOther := map[uint64]string{}, map[uint64]string{}
	version, _ := exec.CommandContext(t.Context(), "go", "version", path).Output() // empty unless it is a Go program
	isGo := len(version) > 0
	if isGo {
		if ofGo, err = goNames(t.Context(), path, addrs); err != nil {
			t.Logf("%v", err)
		}
	} else if len(unsure) > 0 {
		// Functions in assembly can lack a size, so nm does not show where they end.
		if ofOther, err = nearest(t.Context(), path, unsure); err != nil {
			t.Logf("%v", err)
		}
	}
	for addr, there := range places {
		want := table.at(addr)
		if name := ofGo[addr]; name != "" && name != "?" {
			want = append(want, name)
			// Traces of Go leave out a generated (*T).M, and show T.M, which is inlined into it.
			if method.MatchString(name) && table.generated(t.Context(), path, addr) {
				want = append(want, method.ReplaceAllString(name, "$1$2"))
			}
		}
		if name := ofOther[addr]; name != "" && name != "??" && len(want) == 0 {
			for _, f := range there {
				if plain(name) == symbol(f) {
					want = append(want, plain(name))
				}
			}
		}
		for i, f := range there {
			named, _ := known(f)
			n := all[f]
			if len(want) > 0 {
				v.tools += n
			}
			var c *int
			switch {
			case !named && len(want) > 0:
				v.missed += n
				c = &v.places.missed
			case !named:
				if !table.complete && !isGo {
					v.stripped += n
				}
				c = &v.places.none
			case len(want) == 0:
				c = &v.places.more // from compressed tables, which nm does not read
			case slices.Contains(want, plain(symbol(f))) || slices.Contains(want, symbol(f)):
				c = &v.places.same
			default:
				c = &v.places.wrong
				v.wrongs = append(v.wrongs, fmt.Sprintf("%s %#x is %q, not one of %q", path, addr, symbol(f), want))
			}
			// An address can be sampled before and after its file was read. It counts only once, unless its name is wrong.
			if i == 0 || c == &v.places.wrong {
				*c++
			}
		}
	}
}

// method matches the receiver and the name of a Go method with a pointer receiver.
var method = regexp.MustCompile(`\(\*(\w+)\)(\.\w+)$`)

// checkGenerated compares names of generated code with the process's perf map and with the vdso.
func (v *verdict) checkGenerated(t *testing.T, pid int, names map[string]bool) {
	t.Helper()
	there := perfMap(pid)
	vdso, err := readSymbols(t.Context(), "[vdso]")
	require.NoError(t, err)
	for _, f := range vdso.functions {
		there[plain(f.name)] = true
	}
	for name := range names {
		if there[name] {
			v.generated.same++
		} else {
			v.generated.wrong++
			v.wrongs = append(v.wrongs, fmt.Sprintf("%q is in no file and neither in the vdso nor in the perf map of %d", name, pid))
		}
	}
}
