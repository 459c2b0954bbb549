package symbols

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pass lets so much time pass for a file whose read has failed.
func pass(s *Store, id FileID, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[id]; !e.retry.IsZero() {
		e.retry = e.retry.Add(-d)
	}
}

// What made a read fail can pass: the next who asks after a while has the file read from where that one has it. The while
// becomes longer each time, up to a bound.
func TestStoreFailedReadIsNotForEver(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want State
	}{"its process has ended": {os.ErrNotExist, Gone}, "no file descriptor was left": {syscall.EMFILE, Unreadable}} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, Options{Limits: small})
			good := onDisk(t, example().bytes())
			bad := good
			opened := 0
			bad.Open = func() (*os.File, error) { opened++; return nil, c.err }
			for i, wait := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 8 * time.Minute} {
				require.Equal(t, Pending, s.Request(bad))
				require.Equal(t, c.want, stateAfter(t, s, bad))
				require.Equal(t, i+1, opened)
				pass(s, good.ID, wait-10*time.Second)
				require.Equal(t, c.want, stateAfter(t, s, bad), "not yet")
				require.Equal(t, i+1, opened)
				pass(s, good.ID, 10*time.Second)
				_, state := s.Lookup(good.ID, 0x1000)
				require.Equal(t, Unknown, state, "whoever looks up has to request it")
			}
			require.Equal(t, Named, stateAfter(t, s, good))
			require.EqualValues(t, 1, s.Stats().Files)
			require.NoError(t, s.Err(good.ID))
		})
	}
}

// While a file is read again it is pending.
func TestStoreAgainIsPending(t *testing.T) {
	s := newStore(t, Options{Limits: small})
	r := onDisk(t, example().bytes())
	open := r.Open
	r.Open = func() (*os.File, error) { return nil, os.ErrNotExist }
	require.Equal(t, Gone, stateAfter(t, s, r))
	pass(s, r.ID, time.Hour)
	began, stuck := make(chan struct{}), make(chan struct{})
	r.Open = func() (*os.File, error) { close(began); <-stuck; return open() }
	require.Equal(t, Pending, s.Request(r))
	<-began
	_, state := s.Lookup(r.ID, 0x1000)
	require.Equal(t, Pending, state)
	require.Equal(t, Pending, s.Request(r))
	close(stuck)
	require.True(t, s.Wait(t.Context(), r.ID))
	_, state = s.Lookup(r.ID, 0x1000)
	require.Equal(t, Named, state)
}

// What is in a file does not pass.
func TestStoreContentIsFinal(t *testing.T) {
	s := newStore(t, Options{Limits: small})
	r := onDisk(t, []byte("#!/bin/sh\nexec something\n"))
	require.Equal(t, NotELF, stateAfter(t, s, r))
	pass(s, r.ID, time.Hour)
	_, state := s.Lookup(r.ID, 0x1000)
	require.Equal(t, NotELF, state)
	require.Equal(t, NotELF, s.Request(r))
}

// A file that was not read in time is not too large: on another day the machine is faster.
func TestStoreTooSlow(t *testing.T) {
	s := newStore(t, Options{Limits: small, Timeout: time.Nanosecond})
	r := onDisk(t, example().bytes())
	require.Equal(t, Unreadable, stateAfter(t, s, r))
	require.ErrorContains(t, s.Err(r.ID), "takes too long")
	pass(s, r.ID, time.Hour)
	require.Equal(t, Pending, s.Request(r))
	require.True(t, s.Wait(t.Context(), r.ID))
	require.Equal(t, Unreadable, stateOf(context.DeadlineExceeded))
}
