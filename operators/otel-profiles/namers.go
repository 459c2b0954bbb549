package otelprofiles

import (
	"fmt"
	"os"
	"sync"
	"time"

	log "github.com/sirupsen/logrus"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/debuginfod"
)

// namer is what all gadgets of a process share to name their stacks, as long as one of them runs.
type namer struct {
	*names.Namer
	wait time.Duration // for printed text, at most, per stack
	refs int
}

// namers owns the namer of a process.
type namers struct {
	mu      sync.Mutex
	current *namer
	setting func() config.Names
}

// acquire returns the running namer, which it makes for the first.
func (n *namers) acquire() *namer {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.current == nil {
		s := n.setting()
		o := names.Options{
			HostRoot: os.Getenv("HOST_ROOT"),
			Symbols:  symbols.Options{Bytes: s.Memory, Lines: s.Lines, Inlined: s.Lines},
		}
		if d := s.Debuginfod; len(d.URLs) > 0 {
			client, err := debuginfod.New(debuginfod.Options{URLs: d.URLs, Dir: d.Cache, DirBytes: d.CacheSize, Timeout: d.Timeout})
			if err != nil {
				log.Errorf("%s: debug files are not fetched: %v", Name, err)
			} else {
				o.Symbols.Fetch = client.Fetch
			}
		}
		n.current = &namer{wait: s.Wait, Namer: names.New(o)}
	}
	n.current.refs++
	return n.current
}

// release ends a namer that nobody uses any more.
func (n *namers) release(u *namer) {
	n.mu.Lock()
	u.refs--
	last := u.refs == 0
	if last && n.current == u {
		n.current = nil
	}
	n.mu.Unlock()
	if last {
		u.Close()
	}
}

// frames says what is known of user frames, "" if there are none.
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
	return fmt.Sprintf("; %d user frames of distinct stacks: %.1f %% with a name, %.1f %% with their file only%s, %.1f %% with neither%s",
		total, share(named), share(files), reasons(why[true]), share(neither), reasons(why[false]))
}
