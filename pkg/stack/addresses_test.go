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

func TestFindFunction(t *testing.T) {
	for _, tt := range []struct{ name, text, want, err string }{
		{"as it is", "0 t finish\n0 t finish_last\n", "finish", ""},
		{"changed", "0 t finish.isra.0\n0 t finish.isra.0.cold\n", "finish.isra.0", ""},
		{"changed twice", "0 t finish.constprop.12.isra.3\n", "finish.constprop.12.isra.3", ""},
		{"of one file of many", "0 t finish.llvm.9876543210\n", "finish.llvm.9876543210", ""},
		{"a part", "0 t finish.part.0\n", "", "no function finish, "},
		{"moved aside", "0 t finish.cold\n", "", "no function finish, "},
		{"no function", "0 d finish\n", "", "no function finish, "},
		{"a module's", "0 t finish\t[module]\n", "", "no function finish, "},
		{"two of it", "0 t finish.constprop.0\n0 t finish.constprop.1\n", "", "into finish.constprop.0, finish.constprop.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := findFunction(strings.NewReader(tt.text), "finish")
			require.Equal(t, tt.want, got)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
		})
	}
	_, err := findFunction(iotest.ErrReader(os.ErrPermission), "finish")
	require.ErrorIs(t, err, os.ErrPermission)
}
