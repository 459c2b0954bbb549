package history_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"golang.org/x/sync/errgroup"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/workload"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/history"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
	"google.golang.org/protobuf/proto"
)

var (
	noon  = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	limit = config.Retention{MaxAge: 24 * time.Hour, MaxBytes: 1 << 30}
)

// machine holds clocks that a test controls, and a writer that uses these clocks.
type machine struct {
	t       *testing.T
	dir     string
	now     time.Time
	running time.Duration
	warned  []error
	w       *history.Writer
}

func newMachine(t *testing.T, limit config.Retention) *machine {
	m := &machine{t: t, dir: filepath.Join(t.TempDir(), "history"), now: noon}
	m.start(limit)
	t.Cleanup(func() { require.NoError(t, m.w.Close()) })
	return m
}

func (m *machine) start(limit config.Retention) {
	w, err := history.Open(m.dir, limit, func(err error) { m.warned = append(m.warned, err) }, func() time.Time { return m.now }, func() time.Duration { return m.running })
	require.NoError(m.t, err)
	m.w = w
}

func (m *machine) restart(limit config.Retention) {
	require.NoError(m.t, m.w.Close())
	files := segmentFiles(m.t, m.dir)
	for i, s := range listed(m.t, m.dir) { // the files' times are not those of the test's clock
		require.NoError(m.t, os.Chtimes(files[i], s.End, s.End))
	}
	m.start(limit)
}

// pass advances both clocks.
func (m *machine) pass(d time.Duration) { m.now, m.running = m.now.Add(d), m.running+d }

// interval writes n samples of ten seconds and returns their rows.
func (m *machine) interval(w *workload.Workload, n int) (rows int64) {
	from := m.now
	m.pass(10 * time.Second)
	w.Sample(n)
	for _, msg := range w.Flush(from, m.now) {
		require.Equal(m.t, attempt.Accepted, m.w.Send(m.t.Context(), msg).Verdict)
		rows += msg.Rows
	}
	return rows
}

func read(t *testing.T, dir string, q history.Query) history.Answer {
	t.Helper()
	a, err := history.Read(dir, q)
	require.NoError(t, err)
	body, err := proto.Marshal(a.Request)
	require.NoError(t, err)
	if len(a.Request.ResourceProfiles) > 0 {
		require.Empty(t, otlpcheck.CheckBytes(body))
	}
	return a
}

// byService sums requests by service and stack.
func byService(reqs ...*collectorpb.ExportProfilesServiceRequest) map[string]map[string]int64 {
	out := map[string]map[string]int64{}
	for _, req := range reqs {
		for _, s := range receiver.Resolve(req) {
			stack := s.Attributes["thread.name"] + " " + s.Attributes["process.executable.name"]
			for _, f := range s.Stack {
				stack += ";" + f.Name + " " + f.File + " " + f.BuildID
			}
			if out[s.Service] == nil {
				out[s.Service] = map[string]int64{}
			}
			out[s.Service][stack] += s.Total()
		}
	}
	return out
}

// TestAccounts requires each service's stacks with their values, for an hour in which services start and stop.
func TestAccounts(t *testing.T) {
	m := newMachine(t, limit)
	early, late := workload.New(t, "registry.example/profile_cpu:v1", "shop", "db"), workload.New(t, "registry.example/profile_cpu:v1", "db", "mail")
	var sent []*collectorpb.ExportProfilesServiceRequest
	rows, middle, of := int64(0), time.Time{}, map[string]int64{}
	for i := range 360 {
		w := early
		if i >= 180 {
			w = late
		}
		if i == 180 {
			middle = m.now
		}
		from := m.now
		m.pass(10 * time.Second)
		w.Sample(8)
		for _, msg := range w.Flush(from, m.now) {
			req := &collectorpb.ExportProfilesServiceRequest{}
			require.NoError(t, proto.Unmarshal(msg.Body, req))
			sent = append(sent, req)
			rows += msg.Rows
			require.Equal(t, attempt.Accepted, m.w.Send(t.Context(), msg).Verdict)
		}
	}
	for _, s := range byService(sent...)["db"] {
		of["db"] += s
	}
	a := read(t, m.dir, history.Query{From: noon, To: m.now})
	require.Empty(t, a.Damaged)
	require.Equal(t, rows, a.Summary.Rows)
	require.Equal(t, byService(sent...), byService(a.Request))
	require.Equal(t, time.Minute, a.Step)

	// Two halves must add up to the whole, in total and for each service.
	first, second := read(t, m.dir, history.Query{From: noon, To: middle}), read(t, m.dir, history.Query{From: middle})
	require.Equal(t, rows, first.Summary.Rows+second.Summary.Rows)
	require.Equal(t, byService(a.Request), byService(first.Request, second.Request))
	require.NotContains(t, byService(first.Request), "mail")
	require.NotContains(t, byService(second.Request), "shop")
	db := read(t, m.dir, history.Query{From: noon, Service: "db", Gadget: "profile_cpu"})
	require.Len(t, byService(db.Request), 1)
	require.Equal(t, of["db"], db.Summary.Sums[0].Value)
	require.Empty(t, read(t, m.dir, history.Query{From: noon, Gadget: "profile_lock"}).Summary.Sums)

	// List must return the same sums, also for the current segment.
	list, err := history.List(m.dir)
	require.NoError(t, err)
	require.Greater(t, len(list), 2)
	all := history.Total(list)
	require.Equal(t, rows, all.Rows)
	require.Equal(t, a.Summary.Sums, all.Sums)
	require.Equal(t, noon, all.Start.UTC())
}

func segmentFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.seg"))
	require.NoError(t, err)
	return files
}

// Damage loses the rest of its segment, and the answer must name the segment.
func TestDamage(t *testing.T) {
	m := newMachine(t, limit)
	w := workload.New(t, "profile_cpu", "shop")
	var each []int64
	for range 360 { // three segments
		each = append(each, m.interval(w, 20))
	}
	files := segmentFiles(t, m.dir)
	require.Len(t, files, 3)
	data, err := os.ReadFile(files[1])
	require.NoError(t, err)
	data[len(data)/2] ^= 0x20
	require.NoError(t, os.WriteFile(files[1], data, 0o600))
	a := read(t, m.dir, history.Query{From: noon})
	require.Len(t, a.Damaged, 1)
	require.ErrorContains(t, a.Damaged[0], filepath.Base(files[1])+": ")
	// The damaged segment has its summary. A list must nevertheless report the damage.
	for i, s := range listed(t, m.dir) {
		if i == 1 {
			require.ErrorContains(t, s.Err, filepath.Base(files[1])+": ")
			require.EqualValues(t, 120, s.Records)
		} else {
			require.NoError(t, s.Err)
		}
	}
	total := int64(0)
	for _, rows := range each {
		total += rows
	}
	require.Less(t, a.Summary.Rows, total)
	require.GreaterOrEqual(t, a.Summary.Rows, total-120*20)
	require.NotEmpty(t, a.Gaps)

	// The writer continues, also after a restart.
	m.restart(limit)
	more := m.interval(w, 20)
	require.Equal(t, a.Summary.Rows+more, read(t, m.dir, history.Query{From: noon}).Summary.Rows)

	// Read must return, whatever a segment contains.
	for i := range 20 {
		bad := append([]byte(nil), data[:len(data)*(i%7+1)/7]...)
		for j := range 1 + i%5 {
			bad[(i*7919+j*104729)%len(bad)] ^= byte(1 << (i % 8))
		}
		require.NoError(t, os.WriteFile(files[1], bad, 0o600))
		_, err := history.Read(m.dir, history.Query{From: noon})
		require.NoError(t, err)
		_, err = history.List(m.dir)
		require.NoError(t, err)
	}
}

// Two clocks must agree on the age. So a change of the clock must not remove or hide data.
func TestClockIsSet(t *testing.T) {
	short := config.Retention{MaxAge: 30 * time.Minute, MaxBytes: 1 << 30}
	m := newMachine(t, short)
	w := workload.New(t, "profile_cpu", "shop")
	rows := int64(0)
	for range 90 { // a quarter of an hour
		rows += m.interval(w, 5)
	}
	m.now = m.now.Add(time.Hour) // the clock is set forward by an hour
	rows += m.interval(w, 5)
	a := read(t, m.dir, history.Query{From: noon})
	require.Equal(t, rows, a.Summary.Rows)
	require.Len(t, a.Gaps, 1)
	require.InDelta(t, time.Hour, a.Gaps[0].To.Sub(a.Gaps[0].From), float64(time.Second))
	m.restart(short) // the segment seems too old after a start, and stays until the clock has settled
	m.now = m.now.Add(-time.Hour)
	for range 50 {
		rows += m.interval(w, 5)
	}
	m.now = m.now.Add(-time.Hour) // the clock is set back
	rows += m.interval(w, 5)
	require.Equal(t, rows, read(t, m.dir, history.Query{From: noon.Add(-time.Hour)}).Summary.Rows)
	// According to the clock that was set back, all data is younger than an hour.
	require.Equal(t, rows, read(t, m.dir, history.Query{From: m.now.Add(-time.Hour)}).Summary.Rows)

	// All data must be removed when it is old enough.
	for range 2 * 60 * 6 {
		m.interval(w, 5)
	}
	for _, s := range listed(t, m.dir) {
		require.Less(t, m.now.Sub(s.End), 45*time.Minute)
	}
	require.Empty(t, m.warned)
}

func listed(t *testing.T, dir string) []history.Summary {
	t.Helper()
	list, err := history.List(dir)
	require.NoError(t, err)
	return list
}

// A history must not exceed max_bytes, and must remove the oldest segments first.
func TestMaxBytes(t *testing.T) {
	small := config.Retention{MaxBytes: 128 << 10}
	m := newMachine(t, small)
	w := workload.New(t, "profile_cpu", "shop", "db", "mail")
	full := false
	for range 60 {
		m.interval(w, 500)
		total := int64(0)
		for _, f := range segmentFiles(t, m.dir) {
			info, err := os.Stat(f)
			require.NoError(t, err)
			total += info.Size()
		}
		require.LessOrEqual(t, total, small.MaxBytes)
		full = full || total > small.MaxBytes/4*3
		require.True(t, !full || total > small.MaxBytes/2, "no more goes than has to")
	}
	list := listed(t, m.dir)
	require.True(t, list[0].Start.After(noon))
	require.WithinDuration(t, m.now, list[len(list)-1].End, 0)
	require.Greater(t, len(list), 3)
}

// Other users must have no access to the folder, and there must be only one writer.
func TestOneWriter(t *testing.T) {
	m := newMachine(t, limit)
	m.interval(workload.New(t, "profile_cpu", "shop"), 5)
	info, err := os.Stat(m.dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	for _, f := range segmentFiles(t, m.dir) {
		info, err := os.Stat(f)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	}
	_, err = history.New(m.dir, limit, func(error) {})
	require.ErrorContains(t, err, "is in use")
}

// Only a request that cannot be decoded must be lost. The next segment is another file.
func TestRequestIsNoRequest(t *testing.T) {
	m := newMachine(t, limit)
	w := workload.New(t, "profile_cpu", "shop")
	rows := m.interval(w, 5)
	require.Equal(t, attempt.Rejected, m.w.Send(t.Context(), wire.Message{Body: []byte("nonsense"), Rows: 1}).Verdict)
	rows += m.interval(w, 5)
	require.Equal(t, rows, read(t, m.dir, history.Query{From: noon}).Summary.Rows)
}

// Samples must count as the same if only the order of their attributes differs.
func TestAttributesInAnyOrder(t *testing.T) {
	m := newMachine(t, limit)
	m.interval(workload.New(t, "profile_cpu", "shop", "db"), 200)
	m.interval(workload.New(t, "profile_cpu", "db", "shop"), 200)
	a := read(t, m.dir, history.Query{From: noon, To: noon.Add(24 * time.Hour)})
	require.EqualValues(t, 400, a.Summary.Rows)
}

// An answer must contain each resource once, with a scope for each gadget.
func TestScopesOfAResource(t *testing.T) {
	m := newMachine(t, limit)
	m.interval(workload.New(t, "profile_cpu", "shop"), 5)
	m.interval(workload.New(t, "profile_lock", "shop"), 5)
	resources := read(t, m.dir, history.Query{From: noon}).Request.ResourceProfiles
	require.Len(t, resources, 1)
	require.Len(t, resources[0].ScopeProfiles, 2)
}

// A query must not read the segments whose summaries exclude its data.
func TestSkippedSegments(t *testing.T) {
	m := newMachine(t, limit)
	m.interval(workload.New(t, "profile_cpu", "shop"), 100)
	m.pass(time.Hour) // the next request ends the segment
	m.interval(workload.New(t, "profile_cpu", "db"), 5)
	files := segmentFiles(t, m.dir)
	require.Len(t, files, 2)
	data, err := os.ReadFile(files[0])
	require.NoError(t, err)
	data[100] ^= 1 // in the first record, which is large
	require.NoError(t, os.WriteFile(files[0], data, 0o600))
	for _, test := range []struct {
		q    history.Query
		read bool
	}{
		{history.Query{From: noon}, true},
		{history.Query{From: noon, Service: "shop", Gadget: "profile_cpu"}, true},
		{history.Query{From: noon, Service: "db"}, false},
		{history.Query{From: noon, Gadget: "profile_lock"}, false},
		{history.Query{From: noon.Add(30 * time.Minute)}, false},
		{history.Query{From: noon.Add(-time.Hour), To: noon}, false},
	} {
		require.Equal(t, test.read, len(read(t, m.dir, test.q).Damaged) == 1, "%+v", test.q)
	}
}

// Readers must need no lock, even while the writer removes segments.
func TestManyReaders(t *testing.T) {
	small := config.Retention{MaxBytes: 64 << 10}
	m := newMachine(t, small)
	w := workload.New(t, "profile_cpu", "shop", "db")
	m.interval(w, 100)
	done := make(chan struct{})
	var readers errgroup.Group
	for range 4 {
		readers.Go(func() error {
			for {
				a, err := history.Read(m.dir, history.Query{From: noon})
				if err = errors.Join(append(a.Damaged, err)...); err != nil {
					return fmt.Errorf("query: %w", err)
				}
				value := int64(0)
				for _, s := range a.Summary.Sums {
					value += s.Value
				}
				if value != a.Summary.Rows {
					return fmt.Errorf("the answer has %d rows and the value %d", a.Summary.Rows, value)
				}
				list, err := history.List(m.dir)
				for _, s := range list {
					err = errors.Join(err, s.Err)
				}
				if err != nil {
					return fmt.Errorf("list: %w", err)
				}
				select {
				case <-done:
					return nil
				default:
				}
			}
		})
	}
	for range 300 {
		m.interval(w, 200)
	}
	close(done)
	require.NoError(t, readers.Wait())
	require.True(t, listed(t, m.dir)[0].Start.After(noon), "the writer has removed segments")

	// The writer removes the second segment after a reader has listed the folder.
	files := segmentFiles(t, m.dir)
	require.Greater(t, len(files), 2)
	var visited []string
	require.NoError(t, history.EachSegment(m.dir, func(name string) {
		visited = append(visited, name)
		_ = os.Remove(files[1])
	}))
	require.Equal(t, append(files[:1:1], files[2:]...), visited)
}
