package captures

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/btf"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
)

const sharedMaps = `55d0c0a4e000-55d0c0b2f000 r-xp 0002f000 fd:01 1234                       /usr/bin/bash
7f0000000000-7f0000001000 rw-s 00002000 00:1a 77                         /dev/shm/shop orders
7f0000001000-7f0000002000 rw-p 00003000 00:1a 77                         /dev/shm/shop orders
7f0000002000-7f0000003000 rw-s 00000000 00:01 2051                       /memfd:lock (deleted)
7f0000003000-7f0000004000 rw-s 00000000 00:00 0
nonsense
7f0000004000-7f0000005000 rw-s zz 00:01 2052                             /x
`

func TestSharedAt(t *testing.T) {
	for address, want := range map[uint64]string{
		0x7f0000000040: "/dev/shm/shop orders+0x2040",
		0x7f0000001040: "",
		0x7f0000002000: "/memfd:lock (deleted)+0x0",
		0x7f0000003000: "",
		0x7f0000004000: "",
		0x55d0c0a4e000: "",
		0:              "",
	} {
		require.Equal(t, want, sharedAt([]byte(sharedMaps), address), "%#x", address)
	}
}

func TestSharedFiles(t *testing.T) {
	key := &btf.Struct{Name: "lock_key", Size: 48, Members: []btf.Member{
		{Name: "number", Type: &btf.Int{Size: 8}},
		{Name: "lock_file", Offset: 64, Type: &btf.Array{Type: &btf.Int{Size: 1}, Nelems: 24}},
	}}
	metadata := viper.New()
	metadata.Set("address", "address_raw")
	metadata.Set("file", "lock_file")
	f, err := newSharedFiles(metadata, key, lockValue, "")
	require.NoError(t, err)
	require.Equal(t, 8, f.key)
	f.proc = t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(f.proc, "7"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(f.proc, "7", "maps"), []byte(sharedMaps), 0o644))
	row := func(pid uint32, address uint64) *record {
		r := sharedRecord(pid, 1, address)
		f.put(r)
		return r
	}
	// There is room for 23 bytes.
	require.Equal(t, "...m/shop orders+0x2040\x00", string(row(7, 0x7f0000000040).key[8:32]))
	require.Equal(t, strings.Repeat("\x00", 48), string(row(7, 0).key))
	require.Equal(t, strings.Repeat("\x00", 48), string(row(8, 0x7f0000000040).key), "a process that has ended")
	for i := range uint64(mostSharedFiles + 10) {
		row(7, i+1)
	}
	require.LessOrEqual(t, len(f.known), mostSharedFiles)

	for set, want := range map[string]string{
		"address": `shared.address: lock_value has no member "none" of 8 bytes`,
		"file":    `shared.file: lock_key has no text member "none"`,
	} {
		wrong := viper.New()
		wrong.Set("address", "address_raw")
		wrong.Set("file", "lock_file")
		wrong.Set(set, "none")
		_, err := newSharedFiles(wrong, key, lockValue, "")
		require.EqualError(t, err, want)
	}
	none, err := newSharedFiles(nil, key, lockValue, "")
	require.NoError(t, err)
	none.put(row(7, 0x7f0000000040))
}

func sharedRecord(pid, space uint32, address uint64) *record {
	r := &record{key: make([]byte, 48), value: make([]byte, 16), user: make([]byte, userSize)}
	order.PutUint64(r.value[8:], address)
	order.PutUint32(r.user[atPID:], pid)
	order.PutUint32(r.user[atSpace:], space)
	return r
}

// A process must not be able to change the name of another process's lock, or to keep a run busy.
func TestSharedFilesOfOthers(t *testing.T) {
	f := &sharedFiles{proc: t.TempDir(), at: 8, key: 8, len: 40, known: map[sharedKey]string{}, patience: patience.New(50*time.Millisecond, 1), allowance: patience.Allowance{Burst: time.Hour, Slowdown: 1}}
	file := func(pid, space uint32) string {
		r := sharedRecord(pid, space, 0x7f0000000040)
		f.put(r)
		return string(bytes.TrimRight(r.key[8:], "\x00"))
	}
	process := func(name, mapped string) string {
		dir := filepath.Join(f.proc, name)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "maps"), []byte(mapped), 0o644))
		return dir
	}
	const want = "/dev/shm/shop orders+0x2040"
	process("7", sharedMaps)
	require.Equal(t, want, file(7, 1))
	process("7", strings.ReplaceAll(sharedMaps, "shop", "next"))
	require.Equal(t, want, file(7, 1), "read once")
	require.Equal(t, "/dev/shm/next orders+0x2040", file(7, 2), "another process, or program, of that number")

	// The first thread has exited. Another thread has the mappings.
	first, thread := process("8", ""), process("9", sharedMaps)
	require.NoError(t, os.MkdirAll(filepath.Join(first, "task", "9"), 0o755))
	require.NoError(t, os.Symlink("/bin/true", filepath.Join(thread, "exe")))
	require.Equal(t, want, file(8, 1))

	// The kernel does not answer.
	maps := filepath.Join(process("10", ""), "maps")
	require.NoError(t, os.Remove(maps))
	require.NoError(t, unix.Mkfifo(maps, 0o644))
	require.Empty(t, file(10, 1))
	process("11", sharedMaps)
	require.Empty(t, file(11, 1), "too many have not answered")
	goOn, err := os.OpenFile(maps, os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, goOn.Close())
	require.Eventually(t, func() bool { clear(f.known); return file(11, 1) == want }, 20*time.Second, time.Millisecond)

	f.allowance.Use(2 * time.Hour)
	require.Equal(t, want, file(11, 1))
	require.Empty(t, file(11, 2), "so much was read that others have their turn")
	f.allowance.Use(-2 * time.Hour)
	require.Equal(t, want, file(11, 2), "and it is read later")
}
