//go:build e2e

package symbols

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/cfi"
)

// cfiRow is what readelf says of the addresses from begin to end, as cfi.Table.Describe has it.
type cfiRow struct {
	begin, end uint64
	rules      string
}

var (
	cfiCommon   = regexp.MustCompile(`^([0-9a-f]+) [0-9a-f]+ [0-9a-f]+ CIE `)
	cfiFunction = regexp.MustCompile(`^[0-9a-f]+ [0-9a-f]+ [0-9a-f]+ FDE cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+)`)
	cfiRegister = regexp.MustCompile(`\br[0-9]+ \((\w+)\)`) // a register's number before its name
	cfiVector   = regexp.MustCompile(`^(v|xmm|d)[0-9]+$`)
)

// cfiRows asks readelf for the rows of a file's .eh_frame.
func cfiRows(t *testing.T, path string) (all []cfiRow) {
	t.Helper()
	out := run(t, "", "readelf", "--debug-dump=frames-interp,no-follow-links", path)
	_, out, found := strings.Cut(out, "Contents of the .eh_frame section")
	require.True(t, found)
	out, _, _ = strings.Cut(out, "Contents of the ") // .debug_frame
	common := map[string]string{}
	var cie string
	var names []string
	var function []cfiRow
	var begin, end uint64
	inFunction := false
	flush := func() {
		if !inFunction {
			return
		}
		if len(function) == 0 && begin < end {
			function = []cfiRow{{begin: begin, rules: common[cie]}}
		}
		for i := range function {
			function[i].end = end
			if i+1 < len(function) {
				function[i].end = function[i+1].begin
			}
		}
		all = append(all, function...)
		function, inFunction = nil, false
	}
	for line := range strings.Lines(out) {
		line = cfiRegister.ReplaceAllString(strings.TrimRight(line, "\n"), "$1")
		fields := strings.Fields(line)
		switch {
		case cfiCommon.MatchString(line):
			flush()
			cie = cfiCommon.FindStringSubmatch(line)[1]
		case cfiFunction.MatchString(line):
			flush()
			m := cfiFunction.FindStringSubmatch(line)
			cie, inFunction = m[1], true
			begin, _ = strconv.ParseUint(m[2], 16, 64)
			end, _ = strconv.ParseUint(m[3], 16, 64)
		case len(fields) > 1 && fields[0] == "LOC":
			names = fields[2:]
		case len(fields) == len(names)+2 && len(fields[0]) == 16:
			at, err := strconv.ParseUint(fields[0], 16, 64)
			require.NoError(t, err, line)
			rules := "cfa=" + fields[1]
			for i, name := range names {
				if value := fields[i+2]; value != "u" && !cfiVector.MatchString(name) {
					rules += " " + name + "=" + value
				}
			}
			if !inFunction {
				common[cie] = rules
			} else {
				function = append(function, cfiRow{begin: at, rules: rules})
			}
		}
	}
	flush()
	return all
}

func readRules(t *testing.T, path string) *cfi.Table {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	st, err := f.Stat()
	require.NoError(t, err)
	table, err := cfi.Read(f, st.Size(), cfi.Limits{})
	require.NoError(t, err, path)
	return table
}

// described is what a table says, without the registers that are lost: readelf does not tell them from those that the rules
// do not mention.
func described(table *cfi.Table, address uint64) string {
	fields := strings.Fields(table.Describe(address))
	return strings.Join(slices.DeleteFunc(fields, func(f string) bool { return strings.HasSuffix(f, "=u") }), " ")
}

// The rules at the first and the last address of each row of each function, next to what readelf says, of programs and
// libraries as distributions ship them, and of those that were stripped of what they can run without.
func TestUnwindRules(t *testing.T) {
	const library, arm = "/usr/lib/x86_64-linux-gnu/", "/usr/aarch64-linux-gnu/lib/"
	paths := []string{
		library + "libc.so.6", "/lib64/ld-linux-x86-64.so.2", library + "libstdc++.so.6", library + "libcrypto.so.3", library + "libssl.so.3",
		library + "libsqlite3.so.0", "/usr/bin/bash", "/usr/bin/perl", "/usr/bin/python3", "/usr/bin/openssl",
		arm + "libc.so.6", arm + "ld-linux-aarch64.so.1", arm + "libstdc++.so.6",
	}
	c := file(t, "main.c", "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }\n")
	dir := t.TempDir()
	for name, flags := range map[string][]string{
		"c": {"-O2"}, "static": {"-O2", "-static"}, "noindex": {"-O2", "-Wl,--no-eh-frame-hdr"}, "nopie": {"-O2", "-no-pie", "-fno-plt"},
	} {
		path := filepath.Join(dir, name)
		run(t, "", "gcc", append(flags, "-o", path, c)...)
		paths = append(paths, path)
	}
	total := 0
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			rows, table := cfiRows(t, path), readRules(t, path)
			require.NotEmpty(t, rows)
			checked := 0
			for _, r := range rows {
				if r.begin >= r.end {
					continue
				}
				require.Equal(t, r.rules, described(table, r.begin), "%#x", r.begin)
				require.Equal(t, r.rules, described(table, r.end-1), "%#x", r.end-1)
				checked += 2
			}
			total += checked
			t.Logf("%d addresses of %d functions, %d bytes of memory", checked, table.Functions(), table.Bytes())

			whole, err := os.ReadFile(path)
			require.NoError(t, err)
			noSections := filepath.Join(t.TempDir(), "stripped")
			clear(whole[40:48]) // where the section headers are
			clear(whole[60:62]) // how many there are
			require.NoError(t, os.WriteFile(noSections, whole, 0o600))
			if path == filepath.Join(dir, "noindex") || path == filepath.Join(dir, "static") { // they have no index: nothing leads to the rules
				return
			}
			stripped := readRules(t, noSections)
			require.Equal(t, table.Functions(), stripped.Functions())
			for i := 0; i < len(rows); i += 1 + len(rows)/5000 {
				if r := rows[i]; r.begin < r.end {
					require.Equal(t, r.rules, described(stripped, r.begin), fmt.Sprintf("%#x", r.begin))
				}
			}
		})
	}
	t.Logf("%d addresses in all", total)
	require.Greater(t, total, 100_000)
}
