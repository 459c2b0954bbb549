package export

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
)

func noSecrets() []string { return nil }

func TestLogRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &capture{}
		l := newEventLog(logs.logger(), "p: ", noSecrets)
		for i := range 121 {
			l.warnf("a", "a %d", i)
			l.errorf("b", "b %d", i)
			time.Sleep(time.Second)
		}
		l.close()
		l.close()
		l.warnf("a", "after the end")
		require.Equal(t, 3, strings.Count(logs.String(), "p: a "))
		require.Equal(t, 3, strings.Count(logs.String(), "p: b "))
		require.Contains(t, logs.String(), "p: a 60 (59 more of this kind since the last such line)")
		require.NotContains(t, logs.String(), "after the end")
	})
}

// A logger that blocks does not block callers.
func TestLogNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		logger := logrus.New()
		logger.SetOutput(w)
		l := newEventLog(logger, "", noSecrets)
		for i := range 1000 {
			l.warnf(fmt.Sprint(i), "line")
		}
		l.close()
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = io.Copy(io.Discard, r) })
		<-l.done
		require.NoError(t, w.Close())
		wg.Wait()
	})
}

func TestWordsAreShortQuotedAndClean(t *testing.T) {
	l := newEventLog((&capture{}).logger(), "", func() []string { return []string{"s3cr3t"} })
	defer l.close()
	for in, want := range map[string]string{
		"":                       `""`,
		"plain":                  `"plain"`,
		"a\x1b[31m\nb":           `"a\x1b[31m\nb"`,
		"you sent s3cr3t, no?":   `"you sent [redacted], no?"`,
		"\xff":                   "\"\uFFFD\"",
		strings.Repeat("é", 200): `"` + strings.Repeat("é", 128) + `"`,
		// A log line must not show a part of a truncated secret.
		strings.Repeat("x", 253) + "s3cr3t": `"` + strings.Repeat("x", 253) + `[re"`,
	} {
		require.Equal(t, want, l.words(in))
	}
	require.LessOrEqual(t, len(l.words(strings.Repeat("A", 100<<20))), 258)
}

func TestLogIsSafeForConcurrentUse(t *testing.T) {
	l := newEventLog((&capture{}).logger(), "", noSecrets)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 100 {
				l.infof(fmt.Sprint(i), "line")
			}
		})
	}
	l.close()
	wg.Wait()
}
