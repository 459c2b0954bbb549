package proccontext

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/contexttest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/bounded"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// here decodes in this process. cmd/unwinder tests the other end of unwinder.Reader.
type here struct {
	asked atomic.Int64
	fails atomic.Bool
}

func (h *here) Ask(_ context.Context, pid uint32, start uint64, payload []byte) ([]byte, time.Duration, error) {
	h.asked.Add(1)
	if h.fails.Load() || pid == 0 || start == 0 {
		return nil, 0, errors.New("it does not answer")
	}
	_, _, n := protowire.ConsumeTag(payload)
	b, _ := protowire.ConsumeBytes(payload[max(n, 0):])
	var resource resourcepb.Resource
	if err := proto.Unmarshal(b, &resource); err != nil {
		return nil, 0, nil
	}
	var values [len(Keys)]string
	for _, a := range resource.Attributes {
		for i, key := range Keys {
			if key == a.Key {
				values[i] = a.Value.GetStringValue()
			}
		}
	}
	return Encode(values), 0, nil
}

func (h *here) Close() {}

// all returns every attribute that is used, and one that is not used.
func all(service string) map[string]string {
	return map[string]string{
		"service.name": service, "service.namespace": "shop", "service.instance.id": "i-1", "service.version": "1.2",
		"deployment.environment.name": "prod", "k8s.pod.name": "another", "host.name": "elsewhere",
	}
}

func publish(t *testing.T, payload []byte) *contexttest.Published {
	t.Helper()
	p, err := contexttest.Publish(payload)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func own() Process { return Process{PID: uint32(os.Getpid())} }

// read returns the context of this process.
func read(known place) (p process) {
	p.err = p.find("/proc", own(), known)
	return p
}

// TestRead checks that a context is found, that an unchanged context is not copied again, and that a changed one is.
func TestRead(t *testing.T) {
	require.ErrorIs(t, read(place{}).err, errNone)
	p := publish(t, contexttest.Payload(all("checkout")))
	first := read(place{})
	require.NoError(t, first.err)
	require.Equal(t, uint64(uintptr(unsafe.Pointer(&p.Header[0]))), first.address)
	require.NotEmpty(t, first.payload)
	again := read(first.place)
	require.NoError(t, again.err)
	require.Equal(t, first.published, again.published)
	require.Empty(t, again.payload, "it is known")

	p.Update(contexttest.Payload(all("cart")))
	changed := read(first.place)
	require.NoError(t, changed.err)
	require.Greater(t, changed.published, first.published)
	require.Contains(t, string(changed.payload), "cart")

	p.Begin()
	require.ErrorIs(t, read(first.place).err, errBusy)
	require.ErrorIs(t, read(place{}).err, errBusy)
}

// TestHostile checks that no process data makes the reader use too much memory, wait, or touch missing pages.
func TestHostile(t *testing.T) {
	size := os.Getpagesize()
	empty, err := unix.Mmap(-1, 0, 64*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS) // nothing was written there
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(empty)) }()
	edge, err := unix.Mmap(-1, 0, 2*maxPayload, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(edge)) }()
	edge[0] = 1
	for name, spoil := range map[string]func(header []byte){
		"signature":           func(h []byte) { h[0] = 'o' },
		"version 1":           func(h []byte) { binary.NativeEndian.PutUint32(h[versionAt:], 1) },
		"version 3":           func(h []byte) { binary.NativeEndian.PutUint32(h[versionAt:], 3) },
		"no payload":          func(h []byte) { binary.NativeEndian.PutUint32(h[sizeAt:], 0) },
		"a payload too large": func(h []byte) { binary.NativeEndian.PutUint32(h[sizeAt:], maxPayload+1) },
		"all of memory":       func(h []byte) { binary.NativeEndian.PutUint32(h[sizeAt:], 1<<32-1) },
		"nowhere":             func(h []byte) { binary.NativeEndian.PutUint64(h[payloadAt:], 0) },
		"the end of memory":   func(h []byte) { binary.NativeEndian.PutUint64(h[payloadAt:], 1<<64-1) },
		"the kernel":          func(h []byte) { binary.NativeEndian.PutUint64(h[payloadAt:], 0xffffffff81000000) },
		"pages that are not yet": func(h []byte) {
			binary.NativeEndian.PutUint64(h[payloadAt:], uint64(uintptr(unsafe.Pointer(&empty[size]))))
		},
		"more than is there": func(h []byte) {
			binary.NativeEndian.PutUint32(h[sizeAt:], maxPayload)
			binary.NativeEndian.PutUint64(h[payloadAt:], uint64(uintptr(unsafe.Pointer(&edge[0]))))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := publish(t, contexttest.Payload(all("checkout")))
			require.NoError(t, read(place{}).err)
			spoil(p.Header)
			got := read(place{})
			require.ErrorIs(t, got.err, errNone)
			require.Empty(t, got.payload)
		})
	}
	var resident [64]byte
	require.NoError(t, mincore(empty, resident[:]))
	require.Equal(t, [64]byte{}, resident, "no page was touched")
}

func mincore(b, dst []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&dst[0])))
	if errno != 0 {
		return errno
	}
	return nil
}

// TestChangesWhileRead checks that a constantly changing context is never read as a mix of old and new data.
func TestChangesWhileRead(t *testing.T) {
	long := strings.Repeat("b", 30_000)
	p := publish(t, contexttest.Payload(map[string]string{"service.name": "a"}))
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			p.Update(contexttest.Payload(map[string]string{"service.name": []string{"a", long}[i%2]}))
		}
	}()
	h, whole := &here{}, 0
	for range 2000 {
		f := read(place{})
		if f.err != nil {
			require.ErrorIs(t, f.err, errBusy)
			continue
		}
		answer, _, err := h.Ask(t.Context(), 1, 1, f.payload)
		require.NoError(t, err)
		c := parse(answer)
		require.NotNil(t, c)
		require.Contains(t, []string{"a", long[:MaxText]}, c.Service)
		whole++
	}
	close(stop)
	<-done
	t.Log(whole)
}

func TestMayHaveContext(t *testing.T) {
	for line, want := range map[string]uint64{
		"7f0c5e2b9000-7f0c5e2ba000 rw-p 00000000 00:01 1234                       /memfd:OTEL_CTX (deleted)": 0x7f0c5e2b9000,
		"7f0c5e2b9000-7f0c5e2ba000 rw-p 00000000 00:01 1234 /memfd:OTEL_CTX":                                 0x7f0c5e2b9000,
		"7f0c5e2b9000-7f0c5e2ba000 r--p 00000000 00:00 0    [anon:OTEL_CTX]":                                 0x7f0c5e2b9000,
		"7f0c5e2b9000-7f0c5e2ba000 rw-s 00000000 00:01 12   [anon_shmem:OTEL_CTX]":                           0x7f0c5e2b9000,
		"7f0c5e2b9000-7f0c5e2ba000 rwxp 00000000 00:01 12   [anon_shmem:OTEL_CTX]":                           0,
		"7f0c5e2b9000-7f0c5e2ba000 ---p 00000000 00:01 12   [anon_shmem:OTEL_CTX]":                           0,
		"7f0c5e2b9000-7f0c5e2ba000 rw-p 00000000 08:01 12   /home/evil/memfd:OTEL_CTX":                       0,
		"7f0c5e2b9000-7f0c5e2ba000 rw-p 00000000 08:01 12   /tmp/x [anon:OTEL_CTX]":                          0,
		"OTEL_CTX": 0, "x-y r OTEL_CTX": 0, "g-y rw-p 0 0:0 0 [anon:OTEL_CTX]": 0, "": 0,
	} {
		m, ok := procfs.ParseMapping([]byte(line))
		require.Equal(t, want != 0, ok && mayHaveContext(m), line)
		require.True(t, want == 0 || want == m.Start, line)
	}
}

// TestParse checks that any answer from a hostile Reader is handled.
func TestParse(t *testing.T) {
	for _, nonsense := range []string{"", "a", "\x00\x00\x00\x00", " \x00\x00  \x00\x00 ", "a\x00b\x00c\x00d\x00e\x00f"} {
		require.Nil(t, parse([]byte(nonsense)), "%q", nonsense)
	}
	c := parse(Encode([len(Keys)]string{"a\x1b[31m\x00b", "\xff", strings.Repeat("ä", 200), "", ""}))
	require.Equal(t, "a\uFFFD[31m\uFFFDb", c.Service)
	require.Equal(t, "\uFFFD", c.Namespace)
	require.Equal(t, strings.Repeat("ä", MaxText/2), c.Instance)
	require.NotZero(t, c.Key)
	require.Equal(t, c.Key, parse(Encode([len(Keys)]string{"a\x1b[31m\x00b", "\xff", strings.Repeat("ä", 200), "", ""})).Key)
	require.NotEqual(t, parse(Encode([len(Keys)]string{"a", "b"})).Key, parse(Encode([len(Keys)]string{"b", "a"})).Key)
	long := parse([]byte(strings.Repeat("x", 10_000) + "\x00\x00\x00\x00"))
	require.Len(t, long.Service, MaxText)
}

// said waits until a process publishes a context that f accepts.
func said(t *testing.T, r *Resolver, p Process, f func(*Context) bool) *Context {
	t.Helper()
	var c *Context
	require.Eventually(t, func() bool {
		var watched bool
		if c, watched = r.Lookup(p); !watched {
			r.Watch(p, "owner")
		}
		return f(c)
	}, time.Minute, 10*time.Millisecond)
	return c
}

func is(service string) func(*Context) bool {
	return func(c *Context) bool { return c != nil && c.Service == service }
}

// TestResolver checks that a context is found when it is published late, changed or removed.
func TestResolver(t *testing.T) {
	synctest.Test(t, testResolver)
}

func testResolver(t *testing.T) {
	h := &here{}
	r := New("", h)
	defer r.Close()
	_, watched := r.Lookup(own())
	require.False(t, watched)
	r.Watch(own(), "owner")
	require.Eventually(t, func() bool { return r.known[own()].due.Load() != never }, time.Minute, time.Millisecond)
	p := publish(t, contexttest.Payload(all("checkout")))
	c := said(t, r, own(), is("checkout"))
	require.Equal(t, Context{"checkout", "shop", "i-1", "1.2", "prod", c.Key}, *c)
	require.Zero(t, testing.AllocsPerRun(100, func() { r.Lookup(own()) }))

	h.fails.Store(true)
	p.Update(contexttest.Payload(all("cart")))
	asked := h.asked.Load()
	require.Eventually(t, func() bool { r.Lookup(own()); return h.asked.Load() > asked }, time.Minute, 10*time.Millisecond)
	said(t, r, own(), is("checkout"))
	h.fails.Store(false)
	said(t, r, own(), is("cart"))
	p.Header[0] = 0
	said(t, r, own(), func(c *Context) bool { return c == nil })
}

// TestEnded checks that an exited process keeps its context for its last rows, and that a later process with its PID does not
// get it.
func TestEnded(t *testing.T) {
	r := &Resolver{proc: "/proc", reader: &here{}, patience: patience.New(wait, maxStuck)}
	cmd := exec.Command("sleep", "600")
	require.NoError(t, cmd.Start())
	e := &entry{process: Process{PID: uint32(cmd.Process.Pid)}}
	r.look(t.Context(), e)
	require.NotZero(t, e.began)
	c := keyed(Context{Service: "checkout"})
	e.said.Store(c)
	require.NoError(t, cmd.Process.Kill())
	for stat := ""; !strings.Contains(stat, ") Z"); { // its memory is gone
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		require.NoError(t, err)
		stat = string(b)
	}
	r.look(t.Context(), e)
	require.Same(t, c, e.said.Load())
	_ = cmd.Wait()
	r.look(t.Context(), e)
	require.Same(t, c, e.said.Load())

	e.process, e.began = own(), 1
	r.look(t.Context(), e)
	require.Nil(t, e.said.Load())
	e.process.Inode = 1 // the inode of another program
	e.said.Store(c)
	r.look(t.Context(), e)
	require.Same(t, c, e.said.Load())
}

// TestBounds checks that the number of an owner's names is limited, and that they do not displace other owners' names.
func TestBounds(t *testing.T) {
	r := &Resolver{services: bounded.New[uint64](maxOwners, maxServices), instances: bounded.New[uint64](maxOwners, maxInstances)}
	e, other := &entry{owner: "evil"}, &entry{owner: "good"}
	for i := range maxInstances + 10 {
		c := r.admit(e, keyed(Context{Service: "a", Instance: fmt.Sprint(i)}))
		require.Equal(t, "a", c.Service)
		require.Equal(t, i < maxInstances, c.Instance != "", i)
	}
	for i := range maxServices + 10 {
		c := r.admit(e, keyed(Context{Service: fmt.Sprint("s", i)}))
		require.Equal(t, i < maxServices-1, c != nil, i)
	}
	require.Equal(t, "a", r.admit(e, keyed(Context{Service: "a", Instance: "3"})).Service, "what is known stays")
	require.NotNil(t, r.admit(other, keyed(Context{Service: "b", Instance: "1"})))
	require.EqualValues(t, 1, r.Refused.Load())
	require.Nil(t, r.admit(e, nil))
	require.Nil(t, r.admit(e, keyed(Context{Service: "new"})))
	for i := range maxOwners {
		r.admit(&entry{owner: fmt.Sprint(i)}, keyed(Context{Service: "b"}))
	}
	require.NotNil(t, r.admit(e, keyed(Context{Service: "new"})), "there were too many owners")
}

// TestManyProcesses checks that many processes never displace the processes that have a context.
func TestManyProcesses(t *testing.T) {
	r := &Resolver{known: map[Process]*entry{}, queue: make(chan *entry, maxQueue)}
	r.Watch(Process{PID: 1}, "good")
	c := keyed(Context{Service: "checkout"})
	r.known[Process{PID: 1}].said.Store(c)
	for i := range 3 * maxProcesses {
		r.Watch(Process{PID: uint32(i + 2)}, "evil")
		require.LessOrEqual(t, len(r.known), maxProcesses)
	}
	require.Len(t, r.queue, maxQueue)
	got, watched := r.Lookup(Process{PID: 1})
	require.True(t, watched)
	require.Same(t, c, got)
	for _, e := range r.known {
		e.said.Store(c)
		e.due.Store(0)
	}
	r.sweep(unused)
	require.NotEmpty(t, r.known)
	r.sweep(unused + 1)
	require.Empty(t, r.known)
}

// TestFullQueue requires that a process is read later if the queue is full.
func TestFullQueue(t *testing.T) {
	r := &Resolver{queue: make(chan *entry, 1), known: map[Process]*entry{}}
	first, second := &entry{process: Process{PID: 1}}, &entry{process: Process{PID: 2}}
	r.known[first.process], r.known[second.process] = first, second
	r.Lookup(first.process)
	r.Lookup(second.process)
	require.Same(t, first, <-r.queue)
	r.Lookup(first.process)
	require.Empty(t, r.queue, "it is being read")
	r.Lookup(second.process)
	require.Len(t, r.queue, 1)
	require.Same(t, second, <-r.queue)
}
