package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontext "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/contexttest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/proccontext"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
)

func attribute(key string, value *commonpb.AnyValue) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: value}
}

func text(s string) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: s}}
}

func TestDecodeContext(t *testing.T) {
	deep := text("end")
	for range 20_000 {
		deep = &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: &commonpb.ArrayValue{Values: []*commonpb.AnyValue{deep}}}}
	}
	many := make([]*commonpb.KeyValue, 30_000)
	for i := range many {
		many[i] = &commonpb.KeyValue{}
	}
	for name, c := range map[string]struct {
		resource []*commonpb.KeyValue
		extra    []*commonpb.KeyValue
		want     string
	}{
		"all, and others": {
			resource: []*commonpb.KeyValue{
				attribute("host.name", text("elsewhere")), attribute("service.version", text("1.2")), attribute("service.name", text("checkout")),
				attribute("k8s.pod.name", text("another")), attribute("service.instance.id", text("i-1")),
				attribute("deployment.environment.name", text("prod")), attribute("service.namespace", text("shop")),
			},
			want: "checkout,shop,i-1,1.2,prod",
		},
		"twice":       {resource: []*commonpb.KeyValue{attribute("service.name", text("a")), attribute("service.name", text("b"))}, want: "a,,,,"},
		"no text":     {resource: []*commonpb.KeyValue{attribute("service.name", &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: 1}}), attribute("service.version", nil)}, want: ",,,,"},
		"no resource": {extra: []*commonpb.KeyValue{attribute("service.name", text("a"))}, want: ",,,,"},
		"very deep":   {resource: []*commonpb.KeyValue{attribute("service.name", deep)}, want: ""},
		"very many":   {resource: many, want: ",,,,"},
		"very long":   {resource: []*commonpb.KeyValue{attribute("service.name", text(strings.Repeat("x", 60_000)))}, want: strings.Repeat("x", proccontext.MaxText) + ",,,,"},
	} {
		b, err := proto.Marshal(&processcontext.ProcessContext{Resource: &resourcepb.Resource{Attributes: c.resource}, Attributes: c.extra})
		require.NoError(t, err)
		assert.Equal(t, c.want, strings.ReplaceAll(string(decodeContext(b)), "\x00", ","), name)
	}
	assert.Nil(t, decodeContext([]byte("\xff\xff\xff")))
}

// The context of this process is copied, decoded by a process without rights, and updated.
func TestContextConfined(t *testing.T) {
	ownProgram(t)
	published, err := contexttest.Publish(contexttest.Payload(map[string]string{"service.name": "checkout", "service.version": "1.2"}))
	require.NoError(t, err)
	defer published.Close()
	r := proccontext.New("", unwinder.NewContextReader(testLog{t}))
	defer r.Close()
	process := proccontext.Process{PID: uint32(os.Getpid())}
	r.Watch(process, "owner")
	var c *proccontext.Context
	for deadline := time.Now().Add(time.Minute); c == nil && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
		c, _ = r.Lookup(process)
	}
	require.NotNil(t, c)
	assert.Equal(t, "checkout", c.Service)
	assert.Equal(t, "1.2", c.Version)
}
