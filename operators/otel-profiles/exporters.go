package otelprofiles

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	log "github.com/sirupsen/logrus"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/warnings"
)

// exporters holds the process's running exporters. The first gadget that needs an exporter starts it. Gadgets with the same
// settings share the exporter, and a daemon keeps it for later gadgets.
type exporters struct {
	mu      sync.Mutex
	running []*shared
	logged  warnings.Rate // the kinds are the texts of notices
	stop    func()        // stops reporting metrics; nil if no exporter is running
}

// shared is an exporter that instances share.
type shared struct {
	*export.Exporter
	cfg   config.Exporter
	users int // guarded by exporters.mu

	reporting sync.Mutex
	reported  figures
	ended     bool
}

// acquire returns the running exporter with these settings, or starts one. The caller must release it. An exporter with the
// same name but other settings continues to run for its users. acquire does no I/O, see shared.Opened.
func (e *exporters) acquire(cfg config.Exporter) *shared {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.running {
		if reflect.DeepEqual(s.cfg, cfg) {
			s.users++
			return s
		}
	}
	exp := export.New(cfg, export.Options{Logger: log.WithField("operator", Name), Observer: observer{cfg.Name}})
	s := &shared{Exporter: exp, cfg: cfg, users: 1}
	e.running = append(e.running, s)
	if e.stop == nil {
		e.stop = startReporting(e.list)
	}
	return s
}

// These constants limit the time for opening an exporter's files and folders. ig run must show errors to the user. A daemon
// starts the gadget even if the files are not open yet.
var (
	openWait       = 10 * time.Second
	openWaitDaemon = 2 * time.Second // shorter in tests
)

// open waits for the first attempt to open an exporter, and returns the error. In a daemon, open only logs the error. The
// exporter then keeps trying, because no user would restart the gadget.
func (i *instance) open(s *shared) error {
	wait := openWait
	if i.remote {
		wait = openWaitDaemon
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	err := s.Opened(ctx)
	switch {
	case err == nil:
		return nil
	case i.remote:
		i.log.Warnf("%s: exporter %q is not ready, retrying: %v", Name, s.cfg.Name, err)
		return nil
	}
	return fmt.Errorf("starting exporter %q: %w", s.cfg.Name, err)
}

// release ends one use of an exporter. In a daemon, the exporter keeps running for later gadgets. If the process runs only this
// gadget, the caller stops the exporter with stopUnused.
func (e *exporters) release(s *shared) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.users--
}

// stopUnused shuts s down if no gadget uses it. Otherwise stopUnused waits until the requests of s are delivered.
func (e *exporters) stopUnused(ctx context.Context, s *shared) error {
	e.mu.Lock()
	if s.users > 0 {
		e.mu.Unlock()
		return s.Drain(ctx)
	}
	e.drop(s)
	e.mu.Unlock()
	return e.end(ctx, s)
}

// end shuts s down and updates the metrics for the last time.
func (e *exporters) end(ctx context.Context, s *shared) error {
	err := s.Shutdown(ctx)
	s.report(true)
	if err != nil {
		return fmt.Errorf("exporter %q: %w", s.cfg.Name, err)
	}
	return nil
}

// drop removes s from running. The caller holds mu.
func (e *exporters) drop(s *shared) {
	e.running = slices.DeleteFunc(slices.Clone(e.running), func(r *shared) bool { return r == s })
	if len(e.running) == 0 && e.stop != nil {
		e.stop()
		e.stop = nil
	}
}

// shutdown ends all exporters concurrently, within ctx.
func (e *exporters) shutdown(ctx context.Context) error {
	e.mu.Lock()
	running := e.running
	for len(e.running) > 0 {
		e.drop(e.running[0])
	}
	e.mu.Unlock()
	errs := make([]error, len(running))
	var wg sync.WaitGroup
	for i, s := range running {
		wg.Go(func() { errs[i] = e.end(ctx, s) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (e *exporters) list() []*shared {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.running)
}

// targets holds the exporters for each data source.
type targets struct {
	all   []string            // exporters for data sources that are not in named
	named map[string][]string // exporters by data source
	inRun []string            // the data sources in named, in the order of the text
}

// parseTargets parses ParamExporter, a comma-separated list of exporter names. An exporter receives all data sources. If a data
// source's name and a colon precede the exporter, it receives only this data source. A data source that is named goes only to
// its own exporters. Duplicate names are ignored.
func parseTargets(text string) (targets, error) {
	t := targets{named: map[string][]string{}}
	add := func(list []string, name string) []string {
		if slices.ContainsFunc(list, func(s string) bool { return strings.EqualFold(s, name) }) {
			return list
		}
		return append(list, name)
	}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		source, name, ok := strings.Cut(part, ":")
		if !ok {
			t.all = add(t.all, part)
			continue
		}
		source, name = strings.TrimSpace(source), strings.TrimSpace(name)
		if source == "" || name == "" || strings.Contains(name, ":") {
			return targets{}, fmt.Errorf("parameter %q: got %q, expected the name of an exporter or datasource:name; separate several with commas", ParamExporter, part)
		}
		if t.named[source] == nil {
			t.inRun = append(t.inRun, source)
		}
		t.named[source] = add(t.named[source], name)
	}
	return t, nil
}

func (t targets) empty() bool { return len(t.all) == 0 && len(t.named) == 0 }

// of returns the exporters for a data source, and whether the parameter names the data source.
func (t targets) of(source string) (names []string, named bool) {
	if names, named = t.named[source]; named {
		return names, true
	}
	return t.all, false
}

// names returns the names of all exporters, sorted.
func (t targets) names() []string {
	list := slices.Clone(t.all)
	for _, names := range t.named {
		list = append(list, names...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// minInterval is the shortest interval in ig run.
const minInterval = 10 * time.Millisecond

// parseInterval parses ParamInterval. It returns 0 for the exporter's own interval.
func parseInterval(text string, remote bool) (time.Duration, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("parameter %q: got %q, expected a duration such as 10s or 1m", ParamInterval, text)
	case d <= 0:
		return 0, fmt.Errorf("parameter %q: got %q, expected a positive duration", ParamInterval, text)
	case remote && d < config.MinInterval:
		return 0, fmt.Errorf("parameter %q: %q is too short: a daemon requires at least %v", ParamInterval, text, config.MinInterval)
	case d < minInterval:
		return 0, fmt.Errorf("parameter %q: %q is too short: it must be at least %v", ParamInterval, text, minInterval)
	case d > config.MaxInterval:
		return 0, fmt.Errorf("parameter %q: %q is too long: use at most %v, because receivers refuse data that is older than an hour", ParamInterval, text, config.MaxInterval)
	}
	return d, nil
}
