package export

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	colprofiles "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	otlpprofiles "go.opentelemetry.io/proto/otlp/profiles/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		storeUntilKilled(dir)
	}
	goleak.VerifyTestMain(m)
}

// settings returns a complete configuration with short intervals.
func settings(transport, endpoint string) config.Exporter {
	return config.Exporter{
		Name: "test", Transport: transport, Endpoint: endpoint, Insecure: true,
		Encoding: "proto", Compression: "none", Timeout: 5 * time.Second,
		Retry: config.Retry{
			Enabled: true, InitialInterval: 5 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 1.5,
			MaxInterval: 20 * time.Millisecond,
		},
		Queue:       config.Queue{Size: 64 << 20, NumConsumers: 4, MaxAge: time.Hour},
		Batch:       config.Batch{Interval: 10 * time.Second, MaxRequestSize: 3_500_000},
		OTLPVersion: "1.11", Format: "otlp-json",
	}
}

// capture is a logger that stores its lines.
type capture struct{ igtest.Buffer }

func (c *capture) logger() *logrus.Logger {
	return igtest.Logger(c)
}

// open starts an exporter, and shuts it down when the test ends.
func open(t testing.TB, cfg config.Exporter) (*Exporter, *capture) {
	t.Helper()
	logs := &capture{}
	e, err := opened(cfg, Options{Logger: logs.logger()})
	require.NoError(t, err)
	t.Cleanup(func() { stop(t, e) })
	return e, logs
}

// opened starts an exporter and waits for its files. If they cannot be opened, it ends the exporter.
func opened(cfg config.Exporter, opts Options) (*Exporter, error) {
	e := New(cfg, opts)
	err := e.Opened(context.Background())
	if err != nil {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = e.Shutdown(ctx)
	}
	return e, err
}

// stop shuts e down at once, so e drops its messages. It then checks that all rows are accounted for.
func stop(t testing.TB, e *Exporter) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_ = e.Shutdown(ctx) // it can hold messages on purpose
	balanced(t, e)
}

// drainAll waits until e holds no messages.
func drainAll(t testing.TB, e *Exporter) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	require.NoError(t, e.Drain(ctx))
}

// sent starts an exporter, passes it a message with 10 rows, and waits until the message is sent or dropped.
func sent(t testing.TB, cfg config.Exporter) (*Exporter, *capture) {
	t.Helper()
	e, logs := open(t, cfg)
	e.Enqueue(message(t, "app", 0))
	drainAll(t, e)
	return e, logs
}

// balanced checks that every row is counted exactly once.
func balanced(t testing.TB, e *Exporter) Stats {
	t.Helper()
	s := e.Stats()
	require.NoError(t, accounted(s))
	return s
}

func accounted(s Stats) error {
	r := s.Rows
	if got, want := r.Delivered+r.Held+r.Partial+r.DroppedTotal(), r.Enqueued+r.Recovered; got != want {
		return fmt.Errorf("rows accounted for: %d of %d: %+v", got, want, r)
	}
	var parts OriginCounts
	dropped := int64(0)
	for _, c := range s.Origins {
		parts.Requests, parts.Delivered, parts.Partial = parts.Requests+c.Requests, parts.Delivered+c.Delivered, parts.Partial+c.Partial
		dropped += RowCounts{Dropped: c.Dropped}.DroppedTotal()
	}
	if parts.Requests != s.Requests || parts.Delivered != r.Delivered || parts.Partial != r.Partial || dropped != r.DroppedTotal() {
		return fmt.Errorf("origins: %+v of %+v", s.Origins, s)
	}
	if r.Held < 0 || s.QueueBytes < 0 || s.QueueMessages < 0 || (s.QueueMessages == 0) != (s.QueueBytes == 0) {
		return fmt.Errorf("gauges: %+v", s)
	}
	return nil
}

// request returns a small valid request whose only resource has the given service.name. filler makes it larger.
func request(name string, filler int) *colprofiles.ExportProfilesServiceRequest {
	dict := &otlpprofiles.ProfilesDictionary{
		StringTable:    []string{"", "samples", "count", "main", "thread.name", "worker", "app", "process.executable.build_id.gnu", "cafe", "process.pid", "cpu", "nanoseconds"},
		MappingTable:   []*otlpprofiles.Mapping{{}, {FilenameStrindex: 6, AttributeIndices: []int32{2}}},
		FunctionTable:  []*otlpprofiles.Function{{}, {NameStrindex: 3}},
		LocationTable:  []*otlpprofiles.Location{{}, {MappingIndex: 1, Address: 0x1234, Lines: []*otlpprofiles.Line{{FunctionIndex: 1, Line: 7}}}, {MappingIndex: 1, Address: 0x99}},
		StackTable:     []*otlpprofiles.Stack{{}, {LocationIndices: []int32{2, 1}}},
		LinkTable:      []*otlpprofiles.Link{{}, {TraceId: bytes.Repeat([]byte{0xab}, 16), SpanId: bytes.Repeat([]byte{0xcd}, 8)}},
		AttributeTable: []*otlpprofiles.KeyValueAndUnit{{}, {KeyStrindex: 4, Value: stringValue("worker")}, {KeyStrindex: 7, Value: stringValue("cafe")}, {KeyStrindex: 9, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: 42}}}},
	}
	if filler > 0 {
		dict.StringTable = append(dict.StringTable, string(bytes.Repeat([]byte{'x'}, filler)))
	}
	return &colprofiles.ExportProfilesServiceRequest{
		ResourceProfiles: []*otlpprofiles.ResourceProfiles{{
			Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{{Key: "service.name", Value: stringValue(name)}}},
			ScopeProfiles: []*otlpprofiles.ScopeProfiles{{
				Scope: &commonpb.InstrumentationScope{Name: "gadget"},
				Profiles: []*otlpprofiles.Profile{{
					SampleType: &otlpprofiles.ValueType{TypeStrindex: 1, UnitStrindex: 2},
					PeriodType: &otlpprofiles.ValueType{TypeStrindex: 10, UnitStrindex: 11}, Period: 1000,
					TimeUnixNano: 1_700_000_000_000_000_000, DurationNano: 10_000_000_000,
					ProfileId: bytes.Repeat([]byte{0x5a}, 16),
					Samples: []*otlpprofiles.Sample{{
						StackIndex: 1, Values: []int64{3}, AttributeIndices: []int32{1, 3}, LinkIndex: 1,
					}},
				}},
			}},
		}},
		Dictionary: dict,
	}
}

func stringValue(s string) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: s}}
}

// message returns an encoded request with 10 rows.
func message(t testing.TB, name string, filler int) Message {
	t.Helper()
	body, err := proto.Marshal(request(name, filler))
	require.NoError(t, err)
	now := time.Now()
	return Message{Body: body, Rows: 10, Samples: 1, Profiles: 1, Start: now.Add(-10 * time.Second), End: now, Owner: name}
}
