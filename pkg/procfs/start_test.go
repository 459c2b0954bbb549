package procfs

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
	n, err := began(fmt.Appendf(nil, "42 (a)"+fields, "4711"))
	require.NoError(t, err)
	require.EqualValues(t, 4711*Tick, n)
	for _, number := range []string{"-1", "x", "18446744073709551615", "1844674407370955161500"} {
		_, err := began(fmt.Appendf(nil, "42 (a)"+fields, number))
		require.ErrorIs(t, err, os.ErrNotExist, number)
	}
	for _, text := range []string{"", "42 (a)", "42 (a) S 1", "42", ")"} {
		_, err := began([]byte(text))
		require.ErrorIs(t, err, os.ErrNotExist, text)
	}
}

func TestBegan(t *testing.T) {
	own, err := Began("/proc", uint32(os.Getpid()))
	require.NoError(t, err)
	require.NotZero(t, own)
	_, err = Began("/proc", 1<<30)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestParent(t *testing.T) {
	require.EqualValues(t, os.Getppid(), Parent("/proc", uint32(os.Getpid())))
	require.Zero(t, Parent("/proc", 1))
	require.Zero(t, Parent("/proc", 1<<30), "no such process")
}

// TestBeganWithoutMain checks a process whose first thread exits before another thread.
func TestBeganWithoutMain(t *testing.T) {
	proc := t.TempDir()
	const stat = "%d (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 %d 20"
	for thread, began := range map[int]int{7: 100, 8: 4711} {
		folder := fmt.Sprint(proc, "/", thread)
		require.NoError(t, os.MkdirAll(folder, 0o755))
		require.NoError(t, os.WriteFile(folder+"/stat", fmt.Appendf(nil, stat, thread, began), 0o600))
	}
	require.NoError(t, os.MkdirAll(proc+"/7/task/8", 0o755))
	require.NoError(t, os.Symlink("/bin/a", proc+"/8/exe"))
	dir, err := Open(proc, 7)
	require.NoError(t, err)
	defer dir.Close()
	got, err := dir.Began(proc, 7)
	require.NoError(t, err)
	require.EqualValues(t, 100*Tick, got)
	require.NoError(t, os.Remove(proc+"/8/stat"))
	_, err = dir.Began(proc, 7)
	require.ErrorIs(t, err, os.ErrNotExist, "the thread has ended, and another process may have the PID")
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
				if known = err == nil; known {
					want = n
				}
			}
		}
		got, err := began(b)
		require.Equal(t, known, err == nil)
		require.Equal(t, want*Tick, got)
	})
}
