package unwinder

import (
	"os"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	log "github.com/sirupsen/logrus"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// vdso is the unwinder's name of the vDSO, and vdsoFile is its code.
const vdso = "linux-vdso.1.so"

var vdsoFile = procmap.File{ID: symtab.VDSO}

// TablesOf returns the symbol tables that all operators in this process share. The operator otel-profiles provides them. Without
// that operator, TablesOf returns new tables, whose files a Reader reads.
func TablesOf(gadgetCtx operators.GadgetContext) *symbols.Shared {
	v, _ := gadgetCtx.GetVar(fieldmap.TablesVar)
	if tables, ok := v.(*symbols.Shared); ok && tables != nil {
		return tables
	}
	return symbols.NewShared(func() symbols.Options {
		return symbols.Options{HostRoot: os.Getenv("HOST_ROOT"), Reader: unwinder.NewReader(log.StandardLogger(), nil)}
	})
}

// acquireNames returns the Namer that all runs in this process share.
func (o *operator) acquireNames(gadgetCtx operators.GadgetContext) *names.Namer {
	return o.names.Acquire(func() *names.Namer { return newNames(TablesOf(gadgetCtx)) })
}

func newNames(tables *symbols.Shared) *names.Namer {
	// Unwatched is set because the unwinder reports which processes have mapped which files.
	return names.New(names.Options{HostRoot: os.Getenv("HOST_ROOT"), Unwatched: true, Tables: tables})
}

// lookup returns the function at an address in a file, without waiting. If pending is true, a later call can find it. The
// unwinder saw the file in f.Proc. proc is another process that has mapped the file, or nil. lookup opens a file when the first
// stack with the file arrives, because the process can exit at any time. It reads the file later. Package procmap decides which
// files to open, how, and for how long.
func (r *rows) lookup(f *wire.File, proc *wire.Proc, address uint64) (symbol symtab.Symbol, pending bool) {
	if r.names == nil {
		return symtab.Symbol{}, false
	}
	file := &vdsoFile
	if f.Name != vdso {
		mapped := [2]procmap.Mapping{{PID: f.Proc, Start: f.Low, End: f.High}}
		if proc != nil && proc.PID != f.Proc {
			mapped[1] = procmap.Mapping{PID: proc.PID, Seen: proc.Start}
		}
		reported := procmap.ReportedFile{Device: f.Device, Inode: f.Inode, Path: f.Path, Version: f.Version}
		if file, pending = r.names.File(reported, mapped[:]...); file == nil {
			return symtab.Symbol{}, pending
		}
	}
	symbol, state := r.names.Lookup(file, address)
	return symbol, !state.Final()
}
