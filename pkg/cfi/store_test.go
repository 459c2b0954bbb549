package cfi

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/deaf"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
)

// small are bounds that the files of tests keep.
var small = Limits{Bytes: 1 << 20, Entries: 1000}

func newStore(t *testing.T, o Options) *Store {
	t.Helper()
	s := NewStore(o)
	t.Cleanup(s.Close)
	return s
}

// onDisk writes a file, and returns its ID and what opens it.
func onDisk(t *testing.T, content []byte) (symbols.FileID, func() (*os.File, error)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	open := func() (*os.File, error) { return os.Open(path) }
	f, err := open()
	require.NoError(t, err)
	defer f.Close()
	id, err := symbols.Identify(f)
	require.NoError(t, err)
	return id, open
}

// nativeExample is a file of this machine's architecture.
func nativeExample() example {
	if native == archARM64 {
		return arm64Example(twoFunctions...)
	}
	return amd64Example(twoFunctions...)
}

// lookup asks until nothing more will be known.
func lookup(t *testing.T, s *Store, id symbols.FileID, open func() (*os.File, error)) *Table {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		changed := s.Changed()
		table, pending := s.Lookup(id, open, nil)
		if !pending {
			return table
		}
		require.Nil(t, table)
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("still pending")
		}
	}
}

// A file is read once, and the kernel's code is known from the start.
func TestStore(t *testing.T) {
	s := newStore(t, Options{Limits: small})
	id, open := onDisk(t, nativeExample().bytes())
	var opened atomic.Int32
	counted := func() (*os.File, error) { opened.Add(1); return open() }
	table := lookup(t, s, id, counted)
	require.NotEmpty(t, table.Describe(0x401000))
	require.Same(t, table, lookup(t, s, id, counted))
	require.EqualValues(t, 1, opened.Load())
	require.EqualValues(t, entryBytes+table.Bytes(), s.Stats().Bytes)
	vdso, pending := s.Lookup(symbols.VDSO, nil, nil)
	require.False(t, pending)
	if native == archAMD64 {
		require.Positive(t, vdso.Functions())
	}
}

// What cannot be read has no table, and is not tried again at once.
func TestStoreFailures(t *testing.T) {
	s := newStore(t, Options{Limits: small})
	other := arm64Example(twoFunctions...)
	if native == archARM64 {
		other = amd64Example(twoFunctions...)
	}
	for name, content := range map[string][]byte{"text": []byte("#!/bin/sh\n"), "none": amd64Example().bytes(), "another machine": other.bytes()} {
		id, open := onDisk(t, content)
		var opened atomic.Int32
		counted := func() (*os.File, error) { opened.Add(1); return open() }
		require.Nil(t, lookup(t, s, id, counted), name)
		require.Nil(t, lookup(t, s, id, counted), name)
		require.EqualValues(t, 1, opened.Load(), name)
	}
	id, open := onDisk(t, nativeExample().bytes())
	id.Size++
	require.Nil(t, lookup(t, s, id, open), "it is another file")
	id.Size--
	id.CtimeNS++
	require.NotNil(t, lookup(t, s, id, open), "it was renamed")
	id.Inode++
	failure := errors.New("failure")
	require.Nil(t, lookup(t, s, id, func() (*os.File, error) { return nil, failure }))
	require.ErrorIs(t, s.Stats().Last, failure)
	require.Nil(t, lookup(t, s, id, open), "not again at once")
	id.Inode++
	require.Nil(t, lookup(t, s, id, func() (*os.File, error) { panic("deliberate") }))
	require.ErrorIs(t, s.Stats().Last, ErrMalformed)
	s.mu.Lock()
	for _, e := range s.entries {
		if !e.retry.IsZero() {
			e.retry = time.Now().Add(-time.Second)
		}
	}
	s.mu.Unlock()
	id.Inode--
	var again atomic.Int32
	require.Nil(t, lookup(t, s, id, func() (*os.File, error) { again.Add(1); return nil, failure }))
	require.EqualValues(t, 1, again.Load(), "after a while it is tried again")
}

// Tables take no more room than they may, and those that are used stay.
func TestStoreBytes(t *testing.T) {
	first, open := onDisk(t, nativeExample().bytes())
	one := lookup(t, newStore(t, Options{Limits: small}), first, open).Bytes() + entryBytes
	s := newStore(t, Options{Limits: small, Bytes: 3 * one})
	require.NotNil(t, lookup(t, s, first, open))
	for range 10 {
		id, open := onDisk(t, nativeExample().bytes())
		require.NotNil(t, lookup(t, s, id, open))
		table, _ := s.Lookup(first, nil, nil)
		require.NotNil(t, table, "it is used")
		require.LessOrEqual(t, s.Stats().Bytes, 3*one)
	}
	require.EqualValues(t, 3, s.Stats().Files)
	require.EqualValues(t, 8, s.Stats().Forgotten)
	require.Nil(t, lookup(t, newStore(t, Options{Limits: small, Bytes: one - 1}), first, open), "larger than all that there is room for")
}

// Many ask for many files at a time, while the Store ends.
func TestStoreRace(t *testing.T) {
	s := NewStore(Options{Limits: small, Bytes: 20 << 10})
	var all sync.WaitGroup
	for range 4 {
		for range 5 {
			id, open := onDisk(t, nativeExample().bytes())
			all.Go(func() {
				for range 200 {
					if table, _ := s.Lookup(id, open, nil); table != nil {
						stepAnyhow(table, 0x401004)
					}
					s.Stats()
				}
			})
		}
	}
	s.Close()
	all.Wait()
	id, open := onDisk(t, nativeExample().bytes())
	table, pending := s.Lookup(id, open, nil)
	require.Nil(t, table)
	require.False(t, pending)
}

// A file system that does not answer keeps no other file from being read. What was left behind ends when it answers after
// all.
func TestStoreDeafFileSystem(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	content := nativeExample().bytes()
	dir := t.TempDir()
	var isDeaf atomic.Bool
	fs := deaf.Mount(t, dir, content, func(string) bool { return isDeaf.Load() })
	f, err := os.Open(filepath.Join(dir, "program"))
	require.NoError(t, err)
	id, err := symbols.Identify(f)
	require.NoError(t, err)
	isDeaf.Store(true)

	s := newStore(t, Options{Limits: small, Timeout: 500 * time.Millisecond})
	var stuck atomic.Int32
	over := make(chan struct{})
	_, pending := s.Lookup(id, func() (*os.File, error) { return f, nil }, func() func() { stuck.Add(1); return func() { close(over) } })
	require.True(t, pending)
	good, open := onDisk(t, content)
	require.NotNil(t, lookup(t, s, good, open))
	_, pending = s.Lookup(id, nil, nil)
	require.False(t, pending)
	require.EqualValues(t, 1, s.Stats().Stuck)
	require.EqualValues(t, 1, stuck.Load())
	s.Close()
	fs.Close()
	<-over
	_, err = unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
	require.Error(t, err, "the file is closed")
}
