package history_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/workload"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/history"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/spool"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// TestHostileRecords reads records with a valid checksum and contents that no writer produces.
func TestHostileRecords(t *testing.T) {
	pack, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		change  func(*profilespb.ProfilesData)
		damaged bool
	}{
		"out of range": {func(d *profilespb.ProfilesData) {
			for p := range dictionary.Profiles(d) {
				p.SampleType.TypeStrindex, p.AttributeIndices = math.MaxInt32, []int32{-1, math.MaxInt32}
				for _, s := range p.Samples {
					s.StackIndex, s.LinkIndex, s.AttributeIndices = math.MaxInt32, -7, []int32{-1, math.MaxInt32}
				}
			}
			for _, l := range d.Dictionary.LocationTable {
				l.MappingIndex, l.Lines = -1, []*profilespb.Line{{FunctionIndex: math.MaxInt32}, {FunctionIndex: math.MinInt32}}
			}
		}, false},
		"no dictionary": {func(d *profilespb.ProfilesData) { d.Dictionary = nil }, false},
		"times": {func(d *profilespb.ProfilesData) {
			for p := range dictionary.Profiles(d) {
				p.TimeUnixNano, p.DurationNano = math.MaxUint64, math.MaxUint64
			}
		}, false},
		"too large": {func(d *profilespb.ProfilesData) {
			d.Dictionary.StringTable = append(d.Dictionary.StringTable, string(make([]byte, 17<<20)))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			w := workload.New(t, "profile_cpu", "shop")
			w.Sample(20)
			msg := w.Flush(noon, noon.Add(1))[0]
			data := &profilespb.ProfilesData{}
			require.NoError(t, proto.Unmarshal(msg.Body, data))
			tc.change(data)
			payload, err := proto.Marshal(data)
			require.NoError(t, err)
			segment := spool.AppendRecord(nil, wire.Message{Body: pack.EncodeAll(payload, nil), Start: noon, End: noon.Add(1), Rows: 20})
			segment = append(segment, 0xff, 0xff, 0xff, 0xff) // the length of a false summary
			file := filepath.Join(dir, "00000000000000000001.seg")
			require.NoError(t, os.WriteFile(file, segment, 0o600))
			require.NoError(t, os.Chtimes(file, noon, noon))
			a, err := history.Read(dir, history.Query{})
			require.NoError(t, err)
			require.NotEmpty(t, a.Damaged) // at least the false summary
			require.Equal(t, tc.damaged, a.Summary.Rows == 0)
			_, err = history.List(dir)
			require.NoError(t, err)
		})
	}
}

// TestTooLarge requires that the writer refuses what no reader would accept, and continues.
func TestTooLarge(t *testing.T) {
	m := newMachine(t, limit)
	w := workload.New(t, "profile_cpu", "shop")
	rows := m.interval(w, 20)
	w.Sample(20)
	msg := w.Flush(noon, noon.Add(1))[0]
	data := &profilespb.ProfilesData{}
	require.NoError(t, proto.Unmarshal(msg.Body, data))
	data.Dictionary.StringTable[data.Dictionary.FunctionTable[1].NameStrindex] = string(make([]byte, 17<<20))
	msg.Body, _ = proto.Marshal(data) // the message was just decoded
	out := m.w.Send(t.Context(), msg)
	require.NotEqual(t, attempt.Accepted, out.Verdict)
	require.Contains(t, out.What, "lower batch.max_request_size")
	msg.Body = []byte("no request")
	require.NotEqual(t, attempt.Accepted, m.w.Send(t.Context(), msg).Verdict)
	rows += m.interval(w, 20)
	a := read(t, m.dir, history.Query{From: noon})
	require.Equal(t, rows, a.Summary.Rows)
	require.Len(t, segmentFiles(t, m.dir), 2, "only the large request ends its segment")
}

// The names in an answer must stay within their limit. Then stacks lose their callers, but the sums stay exact.
func TestManyLongNames(t *testing.T) {
	m := newMachine(t, limit)
	const intervals, each = 90, 1 << 20 // bytes of each interval's names
	for i := range intervals {
		w := workload.New(t, "profile_cpu")
		w.Add("shop", "main", []uint64{1, 2}, 1)
		from := m.now
		m.pass(10 * time.Second)
		for _, msg := range w.Flush(from, m.now) {
			data := &profilespb.ProfilesData{}
			require.NoError(t, proto.Unmarshal(msg.Body, data))
			for j, f := range data.Dictionary.FunctionTable[1:] {
				data.Dictionary.StringTable[f.NameStrindex] = fmt.Sprint(i, ".", j, strings.Repeat("x", each/2))
			}
			msg.Body, _ = proto.Marshal(data) // the message was just decoded
			require.Equal(t, attempt.Accepted, m.w.Send(t.Context(), msg).Verdict)
		}
	}
	for _, n := range []int{10, intervals} {
		a, err := history.Read(m.dir, history.Query{From: noon, To: noon.Add(time.Duration(n) * 10 * time.Second)})
		require.NoError(t, err)
		require.Equal(t, n == intervals, a.Rare > 0, n)
		size, sum := 0, int64(0)
		for _, text := range a.Request.Dictionary.StringTable {
			size += len(text)
		}
		for _, s := range receiver.Resolve(a.Request) {
			sum += s.Total()
		}
		require.LessOrEqual(t, size, 64<<20)
		require.EqualValues(t, n, sum)
	}
}

// A summary is limited, and a query must find the services that are not in it.
func TestManyServices(t *testing.T) {
	m := newMachine(t, limit)
	w := workload.New(t, "profile_cpu")
	const services = 2100
	for i := range services {
		w.Add(fmt.Sprint("service-", i), "main", []uint64{1, uint64(i)}, 1)
	}
	m.interval(w, 0)
	m.restart(limit) // the segment gets its summary
	all := history.Total(listed(t, m.dir))
	require.True(t, all.More)
	require.LessOrEqual(t, len(all.Sums), services-50)
	named, sum := map[string]bool{}, int64(0)
	for _, s := range all.Sums {
		named[s.Service] = true
		sum += s.Value
	}
	require.EqualValues(t, services, sum)
	for i := range services {
		if name := fmt.Sprint("service-", i); !named[name] {
			require.Len(t, byService(read(t, m.dir, history.Query{From: noon, Service: name}).Request), 1)
			return
		}
	}
	t.Error("the summary has all services")
}
