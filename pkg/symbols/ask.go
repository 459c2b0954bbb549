package symbols

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// factTime limits the wait for a fact. Package procmap abandons a file after five seconds.
const factTime = 2 * time.Second

// Ask asks the Reader for a fact about an open file, and returns the Reader's CPU time. It decodes the answer, which is untrusted
// JSON, into into. ErrReader does not mean that the file is at fault.
func (s *Store) Ask(ctx context.Context, f *os.File, fact string, into any) (time.Duration, error) {
	return ask(ctx, s.options.Reader, f, fact, into)
}

// Info identifies an open file. It returns the same CPU time and errors as Ask.
func (s *Store) Info(ctx context.Context, f *os.File) (buildid.Info, time.Duration, error) {
	return Info(ctx, s.options.Reader, f)
}

// Info uses r to identify an open file.
func Info(ctx context.Context, r symtab.Reader, f *os.File) (info buildid.Info, cpu time.Duration, err error) {
	if cpu, err = ask(ctx, r, f, symtab.FactInfo, &info); err == nil {
		err = info.Check()
	}
	return info, cpu, err
}

func ask(ctx context.Context, r symtab.Reader, f *os.File, fact string, into any) (time.Duration, error) {
	id, err := symtab.Identify(f)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, factTime)
	defer cancel()
	table, cpu, err := r.Read(ctx, &symtab.Task{Limits: symtab.DefaultLimits(), Kind: symtab.ReadFact, Fact: fact, ID: id, Opened: f, Size: id.Size})
	if err != nil {
		return cpu, err
	}
	if err := json.Unmarshal(table.Fact, into); err != nil {
		return cpu, fmt.Errorf("%w: decoding the answer about %s: %w", symtab.ErrMalformed, f.Name(), err)
	}
	return cpu, nil
}
