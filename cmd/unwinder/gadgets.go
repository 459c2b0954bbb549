package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"

	"github.com/cilium/ebpf"
	"go.opentelemetry.io/ebpf-profiler/interpreter/interpreterconfig"
	"go.opentelemetry.io/ebpf-profiler/tracer"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// The starter passes these file descriptors if there are chains for gadgets.
const (
	entriesSocket = 5
	sharedMaps    = 6 // the first map, in the order of wire.SharedMaps
)

// serveGadgets loads the chains that gadgets call, and passes their entry programs to the starter.
func serveGadgets(ctx context.Context, t *tracer.Tracer, c config, languages interpreterconfig.Config) (*gadgetChains, error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil, errors.New("this program has no build information")
	}
	if err := checkVersion(info); err != nil {
		return nil, err
	}
	g := &gadgetChains{kinds: c.chains, languages: languages, shared: map[string]*ebpf.Map{}}
	for i, name := range wire.SharedMaps {
		var err error
		if g.shared[name], err = ebpf.NewMapFromFD(sharedMaps + i); err != nil {
			return nil, fmt.Errorf("receiving the map %s: %w", name, err)
		}
	}
	if err := g.enable(ctx, t); err != nil {
		return nil, fmt.Errorf("loading the chains for gadgets: %w", err)
	}
	if err := wire.SendEntries(entriesSocket, g.first); err != nil {
		return nil, fmt.Errorf("sending the entry programs: %w", err)
	}
	return g, nil
}

// serveMore loads the chains that the starter requests later, until the starter or this program exits. Chains that are already
// loaded continue to collect stacks. The socket stays open, because closing it would tell the starter that this process has
// exited. Once ctx is done, serveMore does not answer, because the program is closing the descriptors that loading needs.
func serveMore(ctx context.Context, socket int, load func([]wire.ChainKind) (wire.Entries, error), logger *slog.Logger) {
	for {
		kinds, err := wire.ReceiveAsked(socket)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				logger.Error("cannot load programs for another gadget", "error", err)
			}
			return
		}
		loaded, err := load(kinds)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			for _, kind := range kinds {
				loaded.Refused[kind] = err.Error()
			}
		}
		if err := wire.SendEntries(socket, loaded); err != nil {
			logger.Error("cannot send the programs for another gadget", "error", err)
			return
		}
	}
}
