package otelprofiles

import (
	"context"
	"fmt"
	"os"
	"time"

	log "github.com/sirupsen/logrus"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/proccontext"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/refcount"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/debuginfod"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
)

// namer names the stacks of all gadgets in a process. It exists while at least one gadget runs.
type namer struct {
	*names.Namer
	wait time.Duration // the longest wait for printed text, per stack
}

// namers owns the namer of the process.
type namers struct {
	setting func() config.Names
	tables  *symbols.Shared // other operators also use them: see fieldmap.TablesVar
	current refcount.Value[*namer]
}

func newNamers(setting func() config.Names) *namers {
	return &namers{setting: setting, tables: symbols.NewShared(func() symbols.Options { return tableOptions(setting()) })}
}

// tableOptions returns the options of this process's symbol tables.
func tableOptions(s config.Names) symbols.Options {
	o := symbols.Options{
		// A hostile file can only crash an unprivileged process.
		Reader: unwinder.NewReader(log.StandardLogger(), func() { count(theInstruments().readerEnds, 1) }),
		Bytes:  s.Memory, Lines: s.Lines, HostRoot: os.Getenv("HOST_ROOT"),
	}
	if d := s.Debuginfod; len(d.URLs) > 0 {
		client, err := debuginfod.New(debuginfod.Options{
			URLs: d.URLs, Dir: d.Cache, DirBytes: d.CacheSize, Timeout: d.Timeout,
			Info: func(ctx context.Context, f *os.File) (buildid.Info, time.Duration, error) {
				return symbols.Info(ctx, o.Reader, f)
			},
		})
		if err != nil {
			log.Errorf("%s: debug files are not fetched: %v", Name, err)
		} else {
			o.Fetch = client.Fetch
		}
	}
	return o
}

// acquire returns the namer. The first call creates it.
func (n *namers) acquire() *namer {
	return n.current.Acquire(func() *namer {
		return &namer{
			wait:  n.setting().Wait,
			Namer: names.New(names.Options{HostRoot: os.Getenv("HOST_ROOT"), Tables: n.tables}),
		}
	})
}

// release ends the namer when it is no longer used.
func (n *namers) release() { n.current.Release((*namer).Close) }

// newContexts returns a resolver of process contexts.
func newContexts() *proccontext.Resolver {
	return proccontext.New(os.Getenv("HOST_ROOT"), unwinder.NewContextReader(log.StandardLogger()))
}

// frames describes the states of the user frames. It returns "" if there are no user frames.
func (c Counts) frames() string {
	var total, named, files, neither int64
	why := map[bool]map[string]int64{true: {}, false: {}}
	for i, n := range c.Frames {
		state := names.State(i)
		total += n
		switch {
		case state == names.Named:
			named += n
		case state.FileOnly():
			files += n
			why[true][state.String()] = n
		default:
			neither += n
			why[false][state.String()] = n
		}
	}
	if total == 0 {
		return ""
	}
	share := func(n int64) float64 { return 100 * float64(n) / float64(total) }
	return fmt.Sprintf("; %d user frames in distinct stacks: %.1f %% with a name, %.1f %% with only a file%s, %.1f %% with neither%s",
		total, share(named), share(files), reasons(why[true]), share(neither), reasons(why[false]))
}
