package unwinder

import (
	"os"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	log "github.com/sirupsen/logrus"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// vdso is the unwinder's name of the vDSO.
const vdso = "linux-vdso.1.so"

// names looks up the functions of native code without waiting. It opens a file when the first stack with the file arrives,
// because the process can exit at any time. It reads the file later. Package procmap decides which files to open, how, and for
// how long. All runs in this process share one instance.
type names struct {
	files  *procmap.Resolver
	tables *symbols.Shared
	store  *symbols.Store // holds the symbol tables
}

func newNames(tables *symbols.Shared) *names {
	store := tables.Acquire()
	return &names{
		// Unwatched is set because the unwinder reports which processes have mapped which files.
		files:  procmap.New(procmap.Options{Root: os.Getenv("HOST_ROOT"), Unwatched: true, Identify: store.Info}),
		tables: tables,
		store:  store,
	}
}

// TablesOf returns the symbol tables that all operators in this process share. The operator otel-profiles provides them. Without
// that operator, TablesOf returns new tables, whose files a Reader reads.
func TablesOf(gadgetCtx operators.GadgetContext) *symbols.Shared {
	v, _ := gadgetCtx.GetVar(fieldmap.TablesVar)
	if tables, ok := v.(*symbols.Shared); ok && tables != nil {
		return tables
	}
	return symbols.NewShared(func() symbols.Options {
		return symbols.Options{Inlined: true, HostRoot: os.Getenv("HOST_ROOT"), Reader: unwinder.NewReader(log.StandardLogger(), nil)}
	})
}

// close stops the goroutines and waits for them. It does not wait for a file system that does not respond.
func (n *names) close() {
	n.files.Close()
	n.tables.Release()
}

// lookup returns the function at an address in a file. If pending is true, a later call can find it. The unwinder saw the file
// in f.Proc. proc is another process that has mapped the file, or nil.
func (n *names) lookup(f *wire.File, proc *wire.Proc, address uint64) (symbol symtab.Symbol, pending bool) {
	if n == nil {
		return symtab.Symbol{}, false
	}
	if f.Name == vdso {
		symbol, state := n.store.Lookup(symtab.VDSO, address)
		if state == symtab.Unknown || state == symtab.Busy {
			state = n.store.Request(symbols.Request{ID: symtab.VDSO})
		}
		return symbol, !state.Final()
	}
	mapped := [2]procmap.Mapping{{PID: f.Proc, Start: f.Low, End: f.High}}
	if proc != nil && proc.PID != f.Proc {
		mapped[1] = procmap.Mapping{PID: proc.PID, Seen: proc.Start}
	}
	file, pending := n.files.File(procmap.ReportedFile{Device: f.Device, Inode: f.Inode, Path: f.Path, Version: f.Version}, mapped[:]...)
	if file == nil {
		return symtab.Symbol{}, pending
	}
	symbol, state := n.store.Lookup(file.ID, address)
	if state == symtab.Unknown || state == symtab.Busy {
		state = n.store.Request(symbols.Request{ID: file.ID, Info: file.Info, Path: file.Path, Address: address, Open: file.Open, Root: file.Root, Stuck: file.Stuck})
	}
	return symbol, !state.Final()
}
