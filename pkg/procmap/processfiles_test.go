package procmap

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// filesOf calls Files until nothing is pending.
func filesOf(t *testing.T, r *Resolver, pid uint32) (files []*File) {
	t.Helper()
	require.Eventually(t, func() bool {
		all, start, pending, err := r.Files(pid)
		require.NoError(t, err)
		began, err := procfs.Began("/proc", pid)
		require.NoError(t, err)
		require.Equal(t, began, start)
		files = all
		return !pending
	}, 20*time.Second, 5*time.Millisecond)
	return files
}

// Files must return each file once, including files that were just mapped, but not an executable's earlier content.
func TestFilesOfProcess(t *testing.T) {
	eachWay(t, func(t *testing.T, r *Resolver) {
		path, cmd, p := nap(t)
		areasOf(t, p.PID)
		files := filesOf(t, r, p.PID)
		var paths []string
		for _, f := range files {
			require.NotEmpty(t, f.Info.Code, f.Path)
			paths = append(paths, f.Path)
		}
		require.Contains(t, paths, path)
		require.Contains(t, strings.Join(paths, " "), "/libc.so")
		require.NotContains(t, paths, "[vdso]")
		slices.Sort(paths)
		require.Equal(t, slices.Compact(slices.Clone(paths)), paths)

		exe := files[slices.IndexFunc(files, func(f *File) bool { return f.Path == path })]
		r.mu.Lock()
		earlier := *exe
		earlier.ID.MtimeNS--
		exe.f.known, exe.f.checked = &earlier, 1
		r.mu.Unlock()
		again, _, pending, err := r.Files(p.PID)
		require.NoError(t, err)
		require.True(t, pending)
		require.NotContains(t, again, &earlier)
		files = filesOf(t, r, p.PID)
		require.Equal(t, exe.ID, files[slices.IndexFunc(files, func(f *File) bool { return f.Path == path })].ID)

		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // killed
		_, _, _, err = r.Files(p.PID)
		require.ErrorIs(t, err, os.ErrNotExist)

		f, err := os.Open(path)
		require.NoError(t, err)
		defer f.Close()
		isMapped := func(f *File) bool { return f.Path == path }
		require.False(t, slices.ContainsFunc(filesOf(t, r, uint32(os.Getpid())), isMapped))
		size := os.Getpagesize()
		code, err := unix.Mmap(int(f.Fd()), int64(exe.Info.Code[0].Offset)&^int64(size-1), size, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
		require.NoError(t, err)
		defer func() { require.NoError(t, unix.Munmap(code)) }()
		require.True(t, slices.ContainsFunc(filesOf(t, r, uint32(os.Getpid())), isMapped))
	})
}

// Files must examine only a limited number of a process's files, and no memory without a file.
func TestFilesOfProcessWithMany(t *testing.T) {
	r := bare()
	r.proc = t.TempDir()
	folder := filepath.Join(r.proc, "7")
	require.NoError(t, os.Mkdir(folder, 0o700))
	require.NoError(t, os.Symlink("/proc/self/exe", filepath.Join(folder, "exe")))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "stat"), []byte("7 (x) S"+strings.Repeat(" 1", 40)), 0o600))
	maps := &strings.Builder{}
	maps.WriteString("1000-2000 rwxp 0 00:00 0\n2000-3000 r-xp 0 00:00 0 [vdso]\n3000-4000 rwxp 0 00:01 9 /SYSV1\n")
	for i := range 3 * maxFilesOf / 2 {
		fmt.Fprintf(maps, "%x-%x r-xp 0 fd:01 %d /x\n%x-%x r-xp 2000 fd:01 %d /x\n", (i+2)<<16, (i+2)<<16+4096, i+1, (i+2)<<16+8192, (i+2)<<16+12288, i+1)
	}
	require.NoError(t, os.WriteFile(filepath.Join(folder, "maps"), []byte(maps.String()), 0o600))
	for range 2 {
		files, start, pending, err := r.Files(7)
		require.NoError(t, err)
		require.True(t, pending)
		require.Empty(t, files)
		require.EqualValues(t, procfs.Tick, start)
		require.Len(t, r.files, maxFilesOf)
	}
	require.NoError(t, os.Remove(filepath.Join(folder, "exe"))) // like a kernel thread
	_, _, _, err := r.Files(7)
	require.ErrorIs(t, err, os.ErrNotExist)
}
