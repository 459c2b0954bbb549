package otelprofiles

import (
	"sync"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer"
	// This import registers the resolver that newSymbolizer uses.
	_ "github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer/symtab"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/fieldmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
)

// resolver supplies Inspektor Gadget with the names that this operator exports, for the text of any gadget's stacks. It runs
// before Inspektor Gadget's own resolver symtab, if a gadget requests symtab. symtab reads only the executable's symbol table,
// and returns an error for an exited process. If any resolver returns an error, Inspektor Gadget drops all names in the stack.
type resolver struct{ op *Operator }

func init() { symbolizer.RegisterResolver(resolver{registered}) }

// resolverPriority is below the priority of symtab, 1000. The resolver with the lowest priority runs first.
const resolverPriority = 900

// Priority implements symbolizer.Resolver.
func (resolver) Priority() int { return resolverPriority }

// NewInstance implements symbolizer.Resolver.
func (r resolver) NewInstance(o symbolizer.SymbolizerOptions) (symbolizer.ResolverInstance, error) {
	if !o.UseSymtab {
		return nil, nil
	}
	return &resolverInstance{
		owner: r.op.names, now: time.Now,
		// Other requested resolvers run later, for addresses that this resolver cannot name.
		last: !o.UseDebugInfodCache && !o.UseOtelEbpfProfiler,
	}, nil
}

// resolverInstance is the resolver for one gadget. Inspektor Gadget calls it in the gadget's goroutines, once per row.
type resolverInstance struct {
	owner *namers
	last  bool

	mu    sync.Mutex
	used  *namer // acquired from owner
	names interface {
		ResolveWithin(dst []names.Frame, wait time.Duration, p procmap.Process, seen uint64, addrs []uint64) []names.Frame
	}
	closed bool
	addrs  []uint64
	frames []names.Frame
	wait   time.Duration // the longest wait for one stack
	left   time.Duration // the remaining wait for all stacks at the time since
	since  time.Time     // time at which left was computed
	now    func() time.Time
}

// waitsPerSecond limits the total wait per second, in multiples of the wait for one stack.
const waitsPerSecond = 5

// Resolve implements symbolizer.ResolverInstance. It never returns an error. If it is the last resolver, it answers all
// queries, even if it finds no name. So symtab gets no query. Otherwise, it leaves queries without a name to later resolvers.
func (r *resolverInstance) Resolve(task symbolizer.Task, queries []symbolizer.StackItemQuery, responses []symbolizer.StackItemResponse) ([]symbolizer.StackItemResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begin(); r.names == nil {
		return nil, nil
	}
	r.addrs = r.addrs[:0]
	for i := range queries {
		r.addrs = append(r.addrs, queries[i].Addr)
	}
	begin := r.now()
	elapsed := min(max(begin.Sub(r.since), 0), time.Second) // one second refills left completely; more could overflow
	r.left = min(waitsPerSecond*r.wait, r.left+time.Duration(elapsed.Seconds()*float64(waitsPerSecond*r.wait)))
	r.since = begin
	r.frames = r.names.ResolveWithin(r.frames[:0], max(min(r.wait, r.left), 0), procmap.Process{
		PID: task.Tgid, ExeInode: task.Exe.Ino, ExeModified: task.Exe.MtimeSec*1e9 + int64(task.Exe.MtimeNsec), Space: task.BaseAddrHash,
	}, task.EventBootTimestamp, r.addrs)
	r.left -= r.now().Sub(begin)
	for i := range responses {
		if name := fieldmap.TextName(&r.frames[i], !r.last); name != "" {
			responses[i] = symbolizer.StackItemResponse{Found: true, Symbol: name}
		}
	}
	clear(r.frames)
	if !r.last {
		return nil, nil
	}
	return responses, nil
}

// begin acquires the namer. The caller holds mu.
func (r *resolverInstance) begin() {
	if r.names == nil && !r.closed {
		r.used = r.owner.acquire()
		r.names, r.wait, r.left = r.used, r.used.wait, waitsPerSecond*r.used.wait
	}
}

// Close implements symbolizer.ResolverInstance.
func (r *resolverInstance) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed, r.names = true, nil
	if r.used != nil {
		r.owner.release()
		r.used = nil
	}
}

// GetEbpfReplacements implements symbolizer.ResolverInstance. There are no replacements. Inspektor Gadget calls this method after
// creating all resolvers and before starting the gadget. Therefore it acquires the namer. If the namer were acquired earlier and
// another resolver failed, this resolver would not be closed.
func (r *resolverInstance) GetEbpfReplacements() map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin()
	return nil
}

// IsPruningNeeded implements symbolizer.ResolverInstance. Names have their own limit.
func (*resolverInstance) IsPruningNeeded() bool { return false }

// PruneOldObjects implements symbolizer.ResolverInstance.
func (*resolverInstance) PruneOldObjects(time.Time, time.Duration) {}
