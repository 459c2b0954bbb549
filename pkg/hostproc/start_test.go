package hostproc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStart(t *testing.T) {
	const fields = " S 1 (b) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 %s 20\n"
	n, ok := Start(fmt.Appendf(nil, "42 (a)"+fields, "4711"))
	require.True(t, ok)
	require.EqualValues(t, 4711, n)
	for _, start := range []string{"-1", "x", "18446744073709551615", "1844674407370955161500"} {
		_, ok := Start(fmt.Appendf(nil, "42 (a)"+fields, start))
		require.False(t, ok, start)
	}
	for _, text := range []string{"", "42 (a)", "42 (a) S 1", "42", ")"} {
		_, ok := Start([]byte(text))
		require.False(t, ok, text)
	}
	own, err := os.ReadFile("/proc/self/stat")
	require.NoError(t, err)
	n, ok = Start(own)
	require.True(t, ok)
	require.NotZero(t, n)
}

func FuzzStart(f *testing.F) {
	f.Add([]byte("42 (a) S 1 (b) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20\n"))
	f.Add([]byte("42 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 -7\n"))
	f.Add([]byte("42 (a S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var want uint64
		var known bool
		if at := strings.LastIndex(string(b), ")"); at >= 0 {
			if fields := strings.Fields(string(b[at+1:])); len(fields) > 19 {
				n, err := strconv.ParseUint(fields[19], 10, 40)
				want, known = n, err == nil
			}
		}
		got, ok := Start(b)
		require.Equal(t, known, ok)
		if ok {
			require.Equal(t, want, got)
		}
	})
}
