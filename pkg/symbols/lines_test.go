package symbols

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/internal/elftest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// endedByLines is a Reader that ends when it reads debug information.
type endedByLines struct {
	parse.Here
	ends bool
}

func (r *endedByLines) Read(ctx context.Context, t *symtab.Task) (*symtab.Table, time.Duration, error) {
	if t.Lines && r.ends {
		return nil, 0, fmt.Errorf("%w: %w", symtab.ErrReader, errors.New("out of memory"))
	}
	return r.Here.Read(ctx, t)
}

// Debug information is read after the names, which stay where that ends what reads it.
func TestLinesApart(t *testing.T) {
	content := elftest.WithDebug(elftest.DwarfExample(4)).Bytes()
	binary.LittleEndian.PutUint64(content[64+16:], 0)
	for ends, want := range map[bool]string{true: "", false: "/src/main.c"} {
		s := newStore(t, Options{Reader: &endedByLines{ends: ends}, Limits: elftest.Small, Lines: true})
		file := onDisk(t, content)
		require.Equal(t, symtab.Pending, s.Request(file))
		require.True(t, s.Wait(t.Context(), file.ID))
		got, state := s.Lookup(file.ID, 0x1000)
		require.Equal(t, symtab.Named, state)
		require.Equal(t, "outer", got.Name)
		require.Equal(t, want, got.File)
		require.Equal(t, ends, s.Stats().Lost == 1)
	}
}
