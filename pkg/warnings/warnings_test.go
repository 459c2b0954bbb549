package warnings

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTeller(t *testing.T) {
	var told []string
	w := Teller{Warn: func(err error) { told = append(told, err.Error()) }}
	for _, text := range []string{
		`process 12 may not be looked at`, `process 13 may not be looked at`, // one kind
		`reading counters: bad file`,
		`reading "a\"b 1": at 0x1f`, `reading "c": at 0xa0`, // one kind
		`reading counters: bad file`,
	} {
		w.Tell(errors.New(text))
	}
	require.Equal(t, []string{`process 12 may not be looked at`, `reading counters: bad file`, `reading "a\"b 1": at 0x1f`}, told)
	require.Equal(t, uint64(3), w.Suppressed())
}

// Workloads can influence error texts.
func TestTellerBounded(t *testing.T) {
	told := 0
	var mu sync.Mutex
	w := Teller{Warn: func(error) { mu.Lock(); told++; mu.Unlock() }}
	var done sync.WaitGroup
	for n := range 4 {
		done.Add(1)
		go func() {
			defer done.Done()
			for i := range 100 {
				w.Tell(fmt.Errorf("kind %s", strings.Repeat("x", 100*n+i)))
			}
			w.Tell(errors.New(strings.Repeat(`"`, 1<<20)))
		}()
	}
	done.Wait()
	require.Equal(t, mostKinds, told)
	require.Equal(t, uint64(404-mostKinds), w.Suppressed())
}
