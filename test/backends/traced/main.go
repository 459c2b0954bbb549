// Command traced is a service with the OpenTelemetry SDK for Go. Its resource comes from the environment. It publishes that
// resource as its process context, as OTEP 4719 specifies, because Go's SDK does not do so yet. It creates a span for each call
// of the function checkout, and labels the goroutine with it. It prints each finished span as a line: service, trace ID, span
// ID. It ends with its standard input.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/pprof"

	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/contexttest"
)

var sink uint32 //nolint:unused // Storing results in it keeps the compiler from removing the work.

//go:noinline
func checkout() {
	x := uint32(1)
	for i := range uint32(2_000_000) {
		x = x*31 + i
	}
	sink = x
}

// printer is an exporter of spans.
type printer struct{}

func (printer) ExportSpans(_ context.Context, spans []trace.ReadOnlySpan) error {
	for _, s := range spans {
		service, _ := s.Resource().Set().Value("service.name")
		fmt.Println(service.AsString(), s.SpanContext().TraceID(), s.SpanContext().SpanID())
	}
	return nil
}

func (printer) Shutdown(context.Context) error { return nil }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "traced:", err)
		os.Exit(1)
	}
}

func run() error {
	own := resource.Environment()
	attributes := map[string]string{}
	for _, a := range own.Attributes() {
		attributes[string(a.Key)] = a.Value.AsString()
	}
	published, err := contexttest.Publish(contexttest.Payload(attributes))
	if err != nil {
		return err
	}
	provider := trace.NewTracerProvider(trace.WithResource(own), trace.WithSyncer(printer{}))
	tracer := provider.Tracer("traced")
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	const inSpan = 2000 // in seconds, for samples
	for ctx.Err() == nil {
		traced, span := tracer.Start(context.Background(), "checkout")
		labels := pprof.Labels("trace_id", span.SpanContext().TraceID().String(), "span_id", span.SpanContext().SpanID().String())
		pprof.Do(traced, labels, func(context.Context) {
			for i := 0; i < inSpan && ctx.Err() == nil; i++ {
				checkout()
			}
		})
		span.End()
	}
	return published.Close()
}
