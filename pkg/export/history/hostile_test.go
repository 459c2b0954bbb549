package history_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

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
			require.NoError(t, os.WriteFile(filepath.Join(dir, "00000000000000000001.seg"), segment, 0o600))
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
