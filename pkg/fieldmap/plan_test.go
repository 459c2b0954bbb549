package fieldmap

import (
	"fmt"
	"strings"
	"testing"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// TestKeys checks which changes make a sample or resource distinct.
func TestKeys(t *testing.T) {
	const sameBoth, otherRow, otherBoth = "same", "another sample", "another resource"
	for _, tc := range []struct {
		name   string
		change map[string]any
		want   string
	}{
		{"nothing", nil, sameBoth},
		{"the value", map[string]any{"samples": uint64(99)}, sameBoth},
		{"an attribute that is not exported", map[string]any{"proc.pid": uint32(1)}, sameBoth},
		{"the order of the labels", map[string]any{"k8s.podLabels": "app=cart,tier=web"}, sameBoth},
		{"behind the end of a C string", map[string]any{"proc.comm": "cart-server\x00abc"}, sameBoth},
		{"the thread's name", map[string]any{"proc.comm": "cart-worker"}, otherRow},
		{"the kernel stack", map[string]any{"kern_stack": "do_syscall_64; "}, otherRow},
		{"the kernel stack's ID", map[string]any{"kern_stack_raw": uint32(1)}, otherRow},
		{"the user stack", map[string]any{"user_stack_raw.symbols": "main.main; "}, otherRow},
		{"the user stack's addresses", map[string]any{"user_stack_raw.addresses": "0x1; "}, otherRow},
		{"the user stack's build IDs", map[string]any{"user_stack_raw.buildid": "ab +1; "}, otherRow},
		{"the user stack's ID", map[string]any{"user_stack_raw.stack_id": uint32(1)}, sameBoth},
		{"a user stack that was not asked for", map[string]any{"user_stack_raw.stack_id": uint32(0)}, otherRow},
		{"a user stack that was lost", map[string]any{"user_stack_raw.stack_id": uint32(1 << 31)}, otherRow},
		{"text that moves to another field", map[string]any{"kern_stack": "", "user_stack_raw.symbols": "do_syscall_64; entry_SYSCALL_64_after_hwframe; main.work; main.main; "}, otherRow},
		{"the container", map[string]any{"runtime.containerId": "1"}, otherBoth},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := profileCPU(t, profileCPUMetadata)
			p := compile(t, s, testOptions())
			resA, rowA := p.Keys(s.row(podRow()))
			resB, rowB := p.Keys(s.row(with(tc.change)))
			require.Equal(t, tc.want == otherBoth, resA != resB)
			require.Equal(t, tc.want == sameBoth, rowA == rowB)
		})
	}
	for _, n := range []int{1, 127, 128, 129, 255, 256, 5000} {
		t.Run(fmt.Sprintf("the last of %d bytes", n), func(t *testing.T) {
			s := profileCPU(t, profileCPUMetadata)
			p := compile(t, s, testOptions())
			text := strings.Repeat("a", n-1)
			_, rowA := p.Keys(s.row(with(map[string]any{"kern_stack": text + "b"})))
			_, again := p.Keys(s.row(with(map[string]any{"kern_stack": text + "b"})))
			_, rowB := p.Keys(s.row(with(map[string]any{"kern_stack": text + "c"})))
			require.Equal(t, rowA, again)
			require.NotEqual(t, rowA, rowB)
		})
	}
	t.Run("containers without an ID", func(t *testing.T) {
		s := profileCPU(t, profileCPUMetadata)
		p := compile(t, s, testOptions())
		seen := map[uint64]string{}
		for _, change := range []string{"k8s.namespace", "k8s.podName", "k8s.containerName", "runtime.containerName", ""} {
			row := with(map[string]any{"runtime.containerId": nil})
			if change != "" {
				row[change] = "other"
			}
			res, _ := p.Keys(s.row(row))
			require.NotContains(t, seen, res, change)
			seen[res] = change
		}
		host, _ := p.Keys(s.row(hostRow()))
		require.NotContains(t, seen, host)
	})
	t.Run("many rows", func(t *testing.T) {
		s := profileCPU(t, profileCPUMetadata)
		p := compile(t, s, testOptions())
		rows := map[uint64]bool{}
		resources := map[uint64]bool{}
		for i := range 2000 {
			res, row := p.Keys(s.row(map[string]any{"runtime.containerId": fmt.Sprint(i % 50), "kern_stack_raw": uint32(i)}))
			rows[row], resources[res] = true, true
		}
		require.Len(t, rows, 2000)
		require.Len(t, resources, 50)
	})
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	s := profileCPU(t, profileCPUMetadata)
	s.annotate("proc.pid", annSampleAttribute, "true").annotate("proc.tid", annResourceAttribute, "true")
	s.annotate("user_stack_raw.inode", annTimestamp, "true")
	p := compile(t, s, testOptions())
	for name, d := range map[string]datasource.Data{"pod": s.row(podRow()), "host": s.row(hostRow())} {
		values := make([]int64, 0, 4)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			p.Keys(d)
			values = p.Values(values[:0], d)
			p.Timestamp(d)
			p.StackIDs(d)
		}), name)
	}
}

func TestConcurrentReaders(t *testing.T) {
	s := profileCPU(t, profileCPUMetadata)
	p := compile(t, s, testOptions())
	d := s.row(podRow())
	wantRes, wantRow := p.Keys(d)
	done := make(chan bool)
	for range 4 {
		go func() {
			ok := true
			for range 1000 {
				res, row := p.Keys(d)
				ok = ok && res == wantRes && row == wantRow && p.Values(nil, d)[0] == 3
				p.Timestamp(d)
			}
			done <- ok
		}()
	}
	for range 4 {
		require.True(t, <-done)
	}
}

// FuzzRow reads whole rows of hostile bytes. For every row, nothing panics, equal rows have equal keys, no key occurs twice,
// and every value is limited.
func FuzzRow(f *testing.F) {
	f.Add([]byte("event"), "do_syscall_64; ", "main.main; ", "0x401000; ", "ab +10; ", "id", "ns", "pod", "a=b,c", "repo:tag@sha256:x", "Deployment", "x")
	f.Add([]byte{}, "", "", "", "", "", "", "", "", "", "", "")
	f.Add(make([]byte, 200), "; ; ;", "f[go.shape.struct { A int; B string }]; ", "0xzz; ", "+; ", "\xff", "\x00", ".", ",=,", ":@:/", "Job", strings.Repeat("x", 3000))
	s := profileCPU(f, profileCPUMetadata)
	for _, name := range []string{"proc.pid", "proc.creds.uid", "kernel_ip"} {
		s.annotate(name, annSampleAttribute, "true")
	}
	s.annotate("proc.tid", annResourceAttribute, "true").annotate("kernel_ip", annTimestamp, "true")
	s.annotate("user_stack_raw.inode", annSpanID, "true").annotate("proc.parent.comm", annTraceID, "true")
	o := testOptions()
	o.Exporter.PodLabels = []string{"a", "c"}
	o.Exporter.ImageDigest = true
	p := compile(f, s, o)
	f.Fuzz(func(t *testing.T, event []byte, kernel, symbols, addresses, buildIDs, id, namespace, pod, labels, image, kind, owner string) {
		array, err := s.NewPacketArray()
		require.NoError(t, err)
		d := array.New()
		// A remote end or another operator can put bytes of any length into the packet.
		whole := len(event) >= int(s.size)
		if whole {
			require.NoError(t, s.container.Set(d, event[:s.size]))
		}
		for name, value := range map[string]string{
			"kern_stack": kernel, "user_stack_raw.symbols": symbols, "user_stack_raw.addresses": addresses, "user_stack_raw.buildid": buildIDs,
			"runtime.containerId": id, "k8s.namespace": namespace, "k8s.podName": pod, "k8s.containerName": pod, "k8s.podLabels": labels,
			"runtime.containerImageName": image, "runtime.containerImageDigest": image, "k8s.owner.kind": kind, "k8s.owner.name": owner, "k8s.node": owner,
		} {
			require.NoError(t, s.GetField(name).PutString(d, value))
		}

		res, row := p.Keys(d)
		resAgain, rowAgain := p.Keys(d)
		require.Equal(t, res, resAgain)
		require.Equal(t, row, rowAgain)
		guardedRes, guardedRow := p.keys(d, p.StackKey(d), true)
		require.Equal(t, res, guardedRes)
		require.Equal(t, row, guardedRow)
		require.Len(t, p.Values(nil, d), 1)
		p.Timestamp(d)
		p.StackIDs(d)

		r := p.Resource(d)
		require.LessOrEqual(t, len(r.Attributes), maxResourceAttributes)
		require.NotEmpty(t, attributes(t, r.Attributes)[keyServiceName])
		sm := p.Sample(d)
		for _, attrs := range []map[string]any{attributes(t, r.Attributes), attributes(t, sm.Attributes)} {
			for key, value := range attrs {
				require.NotEmpty(t, key)
				if text, ok := value.(string); ok {
					require.NotEmpty(t, text)
					require.LessOrEqual(t, len(text), maxValueBytes)
					require.Equal(t, strings.ToValidUTF8(text, "?"), text)
				}
			}
		}
		for _, fr := range sm.Stack {
			require.False(t, fr.Name == "" && fr.Address == 0 && fr.Mapping.GNUBuildID == "", "a frame of nothing")
			require.False(t, strings.HasPrefix(fr.Name, "0x") && strings.Trim(fr.Name[2:], "0123456789abcdef") == "" && len(fr.Name) == 18, "a function called as an address")
		}
	})
}

// Keys returns the keys of a row without sharing its stack key.
func (p *Plan) Keys(d datasource.Data) (resource, row uint64) { return p.KeysOf(d, p.StackKey(d)) }

// rowStack has the memory of the stacks of all rows, as in the operator.
var rowStack Stack

// Sample reads a row without sharing its stack. The frames are valid until the next call.
func (p *Plan) Sample(d datasource.Data) profile.Sample {
	rowStack.Forget()
	return p.SampleOf(d, &rowStack)
}
