package buildid

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The expected hashes come from another program: the SHA-256 of the parts, concatenated by hand.
func TestHTLHash(t *testing.T) {
	for _, tc := range []struct {
		name, content, want string
	}{
		{"empty", "", "af5570f5a1810b7af78caf4bc70a660f"},
		{"short: the ends are the same bytes", "hello", "b2c90e0c61910efa8c079b70039694de"},
		{"the ends overlap", strings.Repeat("ab", 3000), "76dcde6606172d8042948230a8675d05"},
		{"what is between the ends does not count", strings.Repeat("a", 4096) + "middle" + strings.Repeat("z", 4096), "ab00e1ab4c3c7c2984d6e0ec4db087b2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := HTLHash(strings.NewReader(tc.content), int64(len(tc.content)))
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
	_, err := HTLHash(strings.NewReader("short"), 4097)
	require.Error(t, err, "a file that has shrunk")
}

// Check refuses impossible identifiers from the process that reads files.
func TestCheck(t *testing.T) {
	right := Info{GNU: "00ff", Go: "a/b", HTLHash: "0123456789abcdef0123456789abcdef", Code: []Segment{{}}}
	require.NoError(t, right.Check())
	for name, change := range map[string]func(*Info){
		"no hash": func(i *Info) { i.HTLHash = "" }, "a path": func(i *Info) { i.GNU = "../.." }, "an escape": func(i *Info) { i.Go = "\x1b[2J" },
		"long": func(i *Info) { i.GNU = strings.Repeat("0", 2*maxGNU+1) }, "much code": func(i *Info) { i.Code = make([]Segment, maxCode+1) },
	} {
		wrong := right
		change(&wrong)
		require.Error(t, wrong.Check(), name)
	}
}
