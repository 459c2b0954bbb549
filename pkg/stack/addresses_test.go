package stack

import (
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func TestFindSymbols(t *testing.T) {
	t.Parallel()
	const symbols = "ffffffff81000000 T _stext\n \nx\nffffffff82208d88 T first\nffffffff83000000 T last\nffffffffc0201000 t first\t[mod]\n"
	for _, tt := range []struct {
		name, text string
		names      []string
		want       []uint64
		err        string
	}{
		{"in their order", symbols, []string{"last", "first"}, []uint64{0xffffffff83000000, 0xffffffff82208d88}, ""},
		{"none asked for", symbols, nil, []uint64{}, ""},
		{"missing", symbols, []string{"first", "second"}, nil, "no symbol second"},
		{"hidden", "0000000000000000 T first\n", []string{"first"}, nil, "CAP_SYSLOG"},
		{"no address", "gggggggggggggggg T first\n", []string{"first"}, nil, "CAP_SYSLOG"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := findSymbols(strings.NewReader(tt.text), tt.names)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
	_, err := findSymbols(iotest.ErrReader(os.ErrPermission), []string{"first"})
	require.ErrorIs(t, err, os.ErrPermission)
}
