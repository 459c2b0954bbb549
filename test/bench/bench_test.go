// Package bench compares this project's operator with Inspektor Gadget's own operator of the same name. They take turns with the
// same rows in one process. The rows pass through Inspektor Gadget's public interfaces to a gRPC receiver that counts bytes.
//
// No other package imports Inspektor Gadget's operator.
package bench

import (
	"context"
	"flag"
	"fmt"
	"hash/maphash"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	igprofiles "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/otel-profiles"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators/simple"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/gadgettest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
	otelprofiles "github.com/ig-otel-profiles/ig-otel-profiles/operators/otel-profiles"
)

var (
	table  = flag.String("table", "", "measure, and write the table to this file")
	rounds = flag.Int("rounds", 3, "rounds per shape; the best of each counts")
)

// shape describes rows and how they arrive.
type shape struct {
	stacks     int // distinct
	depth      int // frames per row, a quarter of them in the kernel
	containers int // 0: all on the host
	single     bool
	goroutines int
	ticks      int // rowsPerTick rows each, all in one batch window
}

const rowsPerTick = 2000

func (s shape) String() string {
	kind := "array"
	if s.single {
		kind = "single events"
	}
	where := "host"
	if s.containers > 0 {
		where = fmt.Sprintf("%d containers", s.containers)
	}
	return fmt.Sprintf("%d stacks of %d frames, %s, %s, %d goroutine(s)", s.stacks, s.depth, where, kind, s.goroutines)
}

var shapes = []shape{
	{stacks: 10, depth: 28, goroutines: 1, ticks: 30},
	{stacks: 100, depth: 28, goroutines: 1, ticks: 30},
	{stacks: 2000, depth: 28, goroutines: 1, ticks: 30},
	{stacks: 50_000, depth: 28, goroutines: 1, ticks: 100},
	{stacks: 2000, depth: 5, goroutines: 1, ticks: 30},
	{stacks: 2000, depth: 100, goroutines: 1, ticks: 30},
	{stacks: 100, depth: 28, containers: 30, goroutines: 1, ticks: 30},
	{stacks: 2000, depth: 28, containers: 30, goroutines: 1, ticks: 30},
	{stacks: 2000, depth: 28, containers: 30, goroutines: 4, ticks: 30},
	{stacks: 2000, depth: 28, containers: 30, single: true, goroutines: 1, ticks: 30},
	{stacks: 2000, depth: 28, containers: 30, single: true, goroutines: 4, ticks: 30},
}

// source is a data source with prepared rows and the fields of a profiler.
type source struct {
	shape   shape
	ds      datasource.DataSource
	kern    datasource.FieldAccessor
	user    datasource.FieldAccessor
	packets []datasource.Packet
	err     error
}

func (s *source) field(name string, kind api.Kind, annotations map[string]string) datasource.FieldAccessor {
	if s.err != nil {
		return nil
	}
	parent, sub, nested := strings.Cut(name, ".")
	if !nested {
		var f datasource.FieldAccessor
		f, s.err = s.ds.AddField(name, kind, datasource.WithAnnotations(annotations))
		return f
	}
	p := s.ds.GetField(parent)
	if p == nil {
		if p, s.err = s.ds.AddField(parent, api.Kind_Invalid, datasource.WithFlags(datasource.FieldFlagEmpty)); s.err != nil {
			return nil
		}
	}
	var f datasource.FieldAccessor
	f, s.err = p.AddSubField(sub, kind, datasource.WithAnnotations(annotations))
	return f
}

func (s *source) init(gadgetCtx operators.GadgetContext) error {
	typ := datasource.TypeArray
	if s.shape.single {
		typ = datasource.TypeSingle
	}
	if s.ds, s.err = gadgetCtx.RegisterDataSource(typ, "samples"); s.err != nil {
		return s.err
	}
	for k, v := range map[string]string{
		"profiles.stack-fields": "kern_stack,user_stack", "profiles.value-field": "samples",
		"profiles.name": "process_cpu", "profiles.type": "samples", "profiles.unit": "count",
	} {
		s.ds.AddAnnotation(k, v)
	}
	attr := map[string]string{"profiles.sample-attribute": "true"}
	s.kern = s.field("kern_stack", api.Kind_String, nil)
	s.user = s.field("user_stack", api.Kind_String, nil)
	samples := s.field("samples", api.Kind_Uint64, nil)
	comm := s.field("proc.comm", api.Kind_String, attr)
	pid := s.field("proc.pid", api.Kind_Uint32, nil)
	if mntns := s.field("proc.mntns_id", api.Kind_Uint64, nil); mntns != nil {
		mntns.AddTags("type:gadget_mntns_id") // required for Inspektor Gadget to trust container fields
	}
	text := map[string]datasource.FieldAccessor{}
	for _, n := range []string{"k8s.namespace", "k8s.podName", "k8s.containerName", "k8s.podLabels", "k8s.node", "runtime.containerId", "runtime.containerImageName"} {
		text[n] = s.field(n, api.Kind_String, nil)
	}
	text["runtime.containerName"] = s.field("runtime.containerName", api.Kind_String, attr)
	if s.err != nil {
		return s.err
	}
	fill := func(d datasource.Data, i int) {
		kernel, user := frames(s.shape.depth/4, i, "kernel_function"), frames(s.shape.depth-s.shape.depth/4, i, "github.com/some/module/pkg.(*Type).method")
		put := func(f datasource.FieldAccessor, v string) {
			if err := f.PutString(d, v); err != nil {
				s.err = err
			}
		}
		put(s.kern, kernel)
		put(s.user, user)
		put(comm, fmt.Sprintf("worker-%d", i%4))
		if err := samples.PutUint64(d, uint64(1+i%3)); err != nil {
			s.err = err
		}
		if err := pid.PutUint32(d, uint32(1000+i%50)); err != nil {
			s.err = err
		}
		if n := s.shape.containers; n > 0 {
			c := i % n
			for f, v := range map[string]string{
				"k8s.namespace": "shop", "k8s.podName": fmt.Sprintf("cart-7d4b9c-%d", c), "k8s.containerName": "cart",
				"k8s.podLabels": "app=cart,tier=backend,pod-template-hash=7d4b9c", "k8s.node": "node1",
				"runtime.containerId":        fmt.Sprintf("%064x", c+1),
				"runtime.containerImageName": "registry.example/shop/cart:v1.2.3", "runtime.containerName": fmt.Sprintf("k8s_cart_%d", c),
			} {
				put(text[f], v)
			}
		}
	}
	order := rand.New(rand.NewPCG(1, 2))
	for tick := range max(1, s.shape.stacks/rowsPerTick) {
		var array datasource.PacketArray
		if !s.shape.single {
			if array, s.err = s.ds.NewPacketArray(); s.err != nil {
				return s.err
			}
		}
		for r := range rowsPerTick {
			i := (tick*rowsPerTick + r) % s.shape.stacks
			if s.shape.stacks <= rowsPerTick {
				i = order.IntN(s.shape.stacks)
			}
			if array != nil {
				d := array.New()
				fill(d, i)
				array.Append(d)
				continue
			}
			p, err := s.ds.NewPacketSingle()
			if err != nil {
				return err
			}
			fill(p, i)
			s.packets = append(s.packets, p)
		}
		if array != nil {
			s.packets = append(s.packets, array)
		}
	}
	return s.err
}

// frames returns stack i, with n frames. As in real programs, stacks share callers: 50,000 stacks contain a few thousand functions.
func frames(n, i int, prefix string) string {
	var b strings.Builder
	for d := range n {
		v := i % 256
		if d > 0 {
			v = (i / 256) % (1 + (n-d)*16)
		}
		fmt.Fprintf(&b, "%s_%02d_%d; ", prefix, d, v)
	}
	return b.String()
}

// emit sends ticks of rows and returns the time per row that one goroutine spent on it.
func (s *source) emit(ticks int) (time.Duration, error) {
	perTick := 1
	if s.shape.single {
		perTick = rowsPerTick
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var spent time.Duration
	var failed error
	for g := range s.shape.goroutines {
		wg.Go(func() {
			start := time.Now()
			for t := g; t < ticks; t += s.shape.goroutines {
				for k := range perTick {
					if err := s.ds.EmitAndRelease(s.packets[(t*perTick+k)%len(s.packets)]); err != nil {
						mu.Lock()
						failed = err
						mu.Unlock()
						return
					}
				}
			}
			mu.Lock()
			spent += time.Since(start)
			mu.Unlock()
		})
	}
	wg.Wait()
	return spent, failed
}

// counter is a gRPC receiver that answers everything with an empty message.
type counter struct {
	addr       string
	mu         sync.Mutex
	length     int64 // uncompressed
	wireLength int64
}

func (c *counter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (c *counter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (c *counter) HandleConn(context.Context, stats.ConnStats) {}

func (c *counter) HandleRPC(_ context.Context, s stats.RPCStats) {
	if in, ok := s.(*stats.InPayload); ok {
		c.mu.Lock()
		c.length += int64(in.Length)
		c.wireLength += int64(in.CompressedLength)
		c.mu.Unlock()
	}
}

func startCounter(t testing.TB) *counter {
	c := &counter{}
	c.addr = recvtest.StartRaw(t, grpc.StatsHandler(c))
	return c
}

// result holds values per row. ns and allocs are for rows with known stacks, from the second window on. cold is the time per row
// in the first ticks, when the stacks are new.
type result struct {
	cold, ns, cpu, allocs, wire, wireCompressed float64
}

func (r *result) best(o result) {
	least := func(to *float64, v float64) {
		if *to == 0 || v < *to {
			*to = v
		}
	}
	least(&r.cold, o.cold)
	least(&r.ns, o.ns)
	least(&r.cpu, o.cpu)
	r.allocs, r.wire = o.allocs, o.wire
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// run exports the rows of one batch window with op. It uses one exporter, and one more for each element of more.
func run(t testing.TB, op operators.DataOperator, sh shape, compression string, more ...string) result {
	c := startCounter(t)
	names, exporters := "", ""
	for i, settings := range append([]string{""}, more...) {
		names += fmt.Sprintf(",x%d", i)
		exporters += fmt.Sprintf("x%d: {exporter: otlp-grpc, endpoint: %q, insecure: true, compression: %s%s}, ", i, c.addr, compression, settings)
	}
	gadgettest.Config(t, "operator: {otel-profiles: {exporters: {"+exporters+"}}}")
	require.NoError(t, op.Init(nil))

	var res result
	src := &source{shape: sh}
	rows := float64(sh.ticks * rowsPerTick)
	var cpu time.Duration
	var emitErr error
	var gc *gadgetcontext.GadgetContext
	emitter := simple.New("emitter", simple.WithPriority(1), simple.OnInit(src.init), simple.OnStart(func(operators.GadgetContext) error {
		var before, after runtime.MemStats
		var cold, warm time.Duration
		runtime.GC()
		cpu = cpuTime()
		cold, emitErr = src.emit(sh.ticks)
		if emitErr == nil {
			runtime.GC()
			runtime.ReadMemStats(&before)
			warm, emitErr = src.emit(sh.ticks)
			runtime.ReadMemStats(&after)
		}
		res.cold, res.ns = float64(cold.Nanoseconds())/rows, float64(warm.Nanoseconds())/rows
		res.allocs = float64(after.Mallocs-before.Mallocs) / rows
		gc.Cancel()
		return nil
	}))
	gc = gadgetcontext.New(context.Background(), "registry.example/profile_cpu:latest", gadgetcontext.WithDataOperators(emitter, op))
	require.NoError(t, gc.Run(api.ParamValues{
		"operator.otel-profiles.otel-profiles-exporter": names[1:], "operator.otel-profiles.otel-profiles-interval": "1h",
	}))
	require.NoError(t, emitErr)
	res.cpu = float64((cpuTime() - cpu).Nanoseconds()) / (2 * rows)
	c.mu.Lock()
	res.wire, res.wireCompressed = float64(c.length)/(2*rows), float64(c.wireLength)/(2*rows)
	c.mu.Unlock()
	return res
}

// measure returns the best of several rounds per operator. The operators take turns, so other load affects them equally. The
// last round uses compression.
func measure(t testing.TB, sh shape, rounds int, ops ...operators.DataOperator) []result {
	results := make([]result, len(ops))
	for range rounds {
		for i, op := range ops {
			results[i].best(run(t, op, sh, "none"))
		}
	}
	for i, op := range ops {
		results[i].wireCompressed = run(t, op, sh, "gzip").wireCompressed
	}
	return results
}

// floor is the cost of hashing the bytes of a row's stacks once.
func floor(sh shape) float64 {
	seed := maphash.MakeSeed()
	var rows []string
	for i := range min(sh.stacks, rowsPerTick) {
		rows = append(rows, frames(sh.depth/4, i, "kernel_function")+frames(sh.depth-sh.depth/4, i, "github.com/some/module/pkg.(*Type).method"))
	}
	best := 0.0
	for range 5 {
		start, sum, n := time.Now(), uint64(0), 0
		for range 20 {
			for _, r := range rows {
				sum += maphash.Comparable(seed, r) // faster than maphash.String
				n++
			}
		}
		ns := float64(time.Since(start).Nanoseconds()) / float64(n)
		if sum != 0 && (best == 0 || ns < best) {
			best = ns
		}
	}
	return best
}

func TestMain(m *testing.M) {
	flag.Parse()
	logrus.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// Bytes and allocations do not depend on the machine's speed, so the test asserts them.
func TestBars(t *testing.T) {
	for _, stacks := range []int{100, 2000} {
		sh := shape{stacks: stacks, depth: 28, containers: 30, goroutines: 1, ticks: 30}
		ours, igs := run(t, otelprofiles.New(), sh, "none"), run(t, igprofiles.Operator, sh, "none")
		// The count includes other goroutines' allocations, for example one per second, or more on a busy machine. Every run
		// also includes the allocations of the rows themselves.
		const allocs = 0.01
		for again := 0; again < 4 && ours.allocs >= allocs; again++ {
			ours.allocs = min(ours.allocs, run(t, otelprofiles.New(), sh, "none").allocs)
		}
		t.Logf("%v: %.1f bytes a row, %.0f with Inspektor Gadget's operator; %.3f allocations a row, %.1f", sh, ours.wire, igs.wire, ours.allocs, igs.allocs)
		require.Greater(t, igs.wire, 20*ours.wire, "%v: bytes on the wire", sh)
		require.Less(t, ours.allocs, allocs, "%v: allocations", sh)
	}
}

// BenchmarkRow runs the shapes one after another, so that you can profile this project's operator: go test ./test/bench -run -
// -bench Row -cpuprofile cpu.out
func BenchmarkRow(b *testing.B) {
	for _, sh := range shapes {
		b.Run(sh.String(), func(b *testing.B) {
			var r result
			for b.Loop() {
				r.best(run(b, otelprofiles.New(), sh, "none"))
			}
			b.ReportMetric(r.ns, "ns/row")
			b.ReportMetric(r.allocs, "allocs/row")
			b.ReportMetric(r.wire, "wire-B/row")
		})
	}
}

func TestTable(t *testing.T) {
	if *table == "" {
		t.Skip("it only measures with -table FILE: run make bench")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Per row; %d rows a tick, twice 30 ticks (50,000 stacks: 100) in one batch window. \"Known\" is the second half, as it is from the second window on; in the first, stacks are read for the first time. \"IG\" is Inspektor Gadget's own operator on the same rows in the same process. CPU includes sending and the receiver.\n\n", rowsPerTick)
	b.WriteString("| rows | ns on the gadget's goroutine | IG | ratio | times one hash of the stack's bytes | first window | IG | ratio | CPU ns | IG | ratio | allocations | IG | bytes on the wire | IG | ratio | gzip | IG |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, sh := range shapes {
		ops := []operators.DataOperator{otelprofiles.New(), igprofiles.Operator}
		if sh.single { // Inspektor Gadget's operator accepts only arrays
			ops = ops[:1]
		}
		results := measure(t, sh, *rounds, ops...)
		ours, hash := results[0], floor(sh)
		if sh.single {
			fmt.Fprintf(&b, "| %v | %.0f | - | - | %.1f | %.0f | - | - | %.0f | - | - | %.3f | - | %.1f | - | - | %.2f | - |\n",
				sh, ours.ns, ours.ns/hash, ours.cold, ours.cpu, ours.allocs, ours.wire, ours.wireCompressed)
			continue
		}
		igs := results[1]
		fmt.Fprintf(&b, "| %v | %.0f | %.0f | **%.0f** | %.1f | %.0f | %.0f | **%.0f** | %.0f | %.0f | %.0f | %.3f | %.1f | %.1f | %.0f | **%.0f** | %.2f | %.1f |\n",
			sh, ours.ns, igs.ns, igs.ns/ours.ns, ours.ns/hash, ours.cold, igs.cold, igs.cold/ours.cold, ours.cpu, igs.cpu, igs.cpu/ours.cpu, ours.allocs, igs.allocs,
			ours.wire, igs.wire, igs.wire/ours.wire, ours.wireCompressed, igs.wireCompressed)
	}
	fmt.Println(b.String())
	require.NoError(t, os.WriteFile(*table, []byte(b.String()), 0o644))
}
