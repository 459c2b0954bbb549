package parse

import (
	"context"
	"debug/elf"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFlatten(t *testing.T) {
	for name, c := range map[string]struct {
		symbols []symbol
		want    []span
	}{
		"apart":             {[]symbol{{10, 5, 0, 0}, {20, 5, 0, 0}}, []span{{10, 15, 0}, {20, 25, 1}}},
		"nested":            {[]symbol{{10, 20, 0, 0}, {15, 5, 0, 0}}, []span{{10, 15, 0}, {15, 20, 1}, {20, 30, 0}}},
		"overlapping":       {[]symbol{{10, 10, 0, 0}, {15, 10, 0, 0}}, []span{{10, 15, 0}, {15, 25, 1}}},
		"alias":             {[]symbol{{10, 10, 0, 0}, {10, 10, 0, 2}}, []span{{10, 20, 0}}},
		"starting together": {[]symbol{{10, 10, 0, 0}, {10, 4, 0, 2}}, []span{{10, 14, 1}, {14, 20, 0}}},
		"without size":      {[]symbol{{10, 0, 0, 0}, {12, 1, 0, 0}}, []span{{12, 13, 1}}},
		"around the end":    {[]symbol{{1<<64 - 10, 20, 0, 0}}, nil},
		"deep":              {[]symbol{{0, 100, 0, 0}, {10, 80, 0, 0}, {20, 10, 0, 0}, {40, 10, 0, 0}}, []span{{0, 10, 0}, {10, 20, 1}, {20, 30, 2}, {30, 40, 1}, {40, 50, 3}, {50, 90, 1}, {90, 100, 0}}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, slices.Collect(flatten(c.symbols))) })
	}
}

// counting is a context that counts the calls of Err and ends after a number of calls.
type counting struct {
	context.Context
	asked, end int
}

func (c *counting) Err() error {
	if c.asked++; c.end > 0 && c.asked > c.end {
		return context.DeadlineExceeded
	}
	return nil
}

// If functions without a size share a few addresses in a file with thousands of sections, each is visited once.
func TestManyUnsized(t *testing.T) {
	const n, places = 512 << 10, 8
	file := func(ctx context.Context) *elfFile {
		f := &elfFile{reader: &reader{ctx: ctx}}
		for i := range uint64(maxSections) {
			f.sections = append(f.sections, section{flags: elf.SHF_EXECINSTR, addr: i * 0x100, size: 0x100})
		}
		return f
	}
	found := make([]symbol, n)
	for i := range found {
		found[i].addr = (maxSections-1)*0x100 + uint64(i/(n/places))*0x10
	}
	others := make([]uint64, n)
	for i := range others {
		others[i] = (maxSections-1)*0x100 + 0x78
	}
	ctx := &counting{Context: t.Context()}
	require.NoError(t, file(ctx).sizeSymbols(found, others))
	require.Equal(t, n/checkSymbols, ctx.asked, "as often as there are symbols, and not more")
	for i, s := range found {
		want := uint64(0x10)
		if i >= n/places*(places-1) {
			want = 8 // up to the next symbol
		}
		if s.size != want {
			t.Fatalf("symbol %d has %d bytes, not %d", i, s.size, want)
		}
	}
	clear(found)
	ctx = &counting{Context: t.Context(), end: 3}
	require.ErrorIs(t, file(ctx).sizeSymbols(found, others), symtab.ErrTooLarge)
	require.Equal(t, 4, ctx.asked, "it ends when the time is up")
}
