package cfi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
)

// errChanged says that a file is not the one that was asked for.
var errChanged = errors.New("the file is not the one that was mapped")

// run is the goroutine that reads the files, within the bound of burst and slowdown, until ctx ends.
func (s *Store) run(ctx context.Context) {
	defer close(s.stopped)
	allowance := patience.Allowance{Burst: burst, Slowdown: slowdown}
	for {
		select {
		case <-ctx.Done():
			return
		default:
		}
		select {
		case <-ctx.Done():
			return
		case e := <-s.queue:
			begin := time.Now()
			t, used, err := s.readOrLeave(ctx, e)
			allowance.Use(used)
			s.finish(e, t, err, time.Since(begin))
		}
		allowance.Rest(ctx)
	}
}

// readOrLeave reads a file, and returns the CPU time that this has taken. If it does not end, it is left behind.
func (s *Store) readOrLeave(ctx context.Context, e *known) (*Table, time.Duration, error) {
	type result struct {
		t   *Table
		err error
	}
	work := new(result)
	id, open, stuck := e.id, e.open, e.stuck
	used, err := s.disks.Do(ctx, func() { work.t, work.err = readFile(id, open, s.options.Limits) }, func() func() {
		if stuck != nil {
			if ended := stuck(); ended != nil {
				return ended
			}
		}
		return func() {}
	})
	if err != nil {
		return nil, used, err
	}
	return work.t, used, work.err
}

// readFile opens and reads a file. A panic becomes an error for this file only.
func readFile(id symbols.FileID, open func() (*os.File, error), l Limits) (t *Table, err error) {
	defer func() {
		if p := recover(); p != nil {
			t, err = nil, fmt.Errorf("%w: reading it ends in %v", ErrMalformed, p)
		}
	}()
	f, err := open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	now, err := symbols.Identify(f)
	if err != nil {
		return nil, err
	}
	now.CtimeNS = id.CtimeNS // who renames, links or deletes a file, or sets its mode, does not change what is in it
	if now != id {
		return nil, errChanged
	}
	t, err = Read(f, id.Size, l)
	if err == nil && t.arch != native {
		return nil, ErrNotELF
	}
	return t, err
}

// readVDSO reads the rules of the code that the kernel gives each process.
func readVDSO(l Limits) (*Table, error) {
	content, err := symbols.ReadVDSO()
	if err != nil {
		return nil, err
	}
	return Read(bytes.NewReader(content), int64(len(content)), l)
}
