package bench

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"testing"

	kgzip "github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// message is one window of 2,000 distinct stacks of 28 frames in 30 containers.
func message(tb testing.TB) []byte {
	a := profile.New(profile.Config{Scope: profile.Scope{Name: "profile_cpu"}, Types: []profile.ValueType{{Type: "samples", Unit: "count"}}})
	for c := range uint64(30) {
		a.SetResource(c, profile.Resource{Attributes: []profile.Attribute{
			{Key: "service.name", Value: profile.String(fmt.Sprintf("service-%d", c))},
			{Key: "container.id", Value: profile.String(fmt.Sprintf("%064x", c*0x9e3779b97f4a7c15))},
		}})
	}
	for i := range 2000 {
		var stack []profile.Frame
		for d := range 28 {
			v := i % 256
			if d > 0 {
				v = (i / 256) % (1 + (28-d)*16)
			}
			stack = append(stack, profile.Frame{Name: fmt.Sprintf("github.com/some/module/pkg%d.(*Type%d).method%d", d%5, v%7, d*1000+v), Type: profile.FrameNative})
		}
		require.Equal(tb, profile.Added, a.Insert(uint64(i%30), uint64(i), profile.Sample{Stack: stack}, []int64{int64(1 + i*i%17)}, 0))
	}
	m := a.Flush(1, 2, profile.Limits{}).Messages
	require.Len(tb, m, 1)
	return m[0].Body
}

// BenchmarkCompress compares compressions for the exporter's default: see pkg/export.
func BenchmarkCompress(b *testing.B) {
	body := message(b)
	run := func(name string, compress func(w io.Writer) io.WriteCloser) {
		b.Run(name, func(b *testing.B) {
			var out bytes.Buffer
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				out.Reset()
				w := compress(&out)
				if _, err := w.Write(body); err != nil {
					b.Fatal(err)
				}
				if err := w.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(body))/float64(out.Len()), "ratio")
		})
	}
	for _, level := range []int{1, 6} {
		w, err := gzip.NewWriterLevel(nil, level)
		require.NoError(b, err)
		run(fmt.Sprintf("gzip of the standard library, level %d", level), func(out io.Writer) io.WriteCloser { w.Reset(out); return w })
		k, err := kgzip.NewWriterLevel(nil, level)
		require.NoError(b, err)
		run(fmt.Sprintf("gzip of klauspost, level %d", level), func(out io.Writer) io.WriteCloser { k.Reset(out); return k })
	}
	for _, level := range []zstd.EncoderLevel{zstd.SpeedFastest, zstd.SpeedDefault} {
		w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(1))
		require.NoError(b, err)
		run(fmt.Sprintf("zstd of klauspost, %v", level), func(out io.Writer) io.WriteCloser { w.Reset(out); return w })
	}
}
