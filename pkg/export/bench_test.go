package export

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/file"
)

// BenchmarkEnqueue is what a flush pays for each request while the receiver is stuck and the
// queue full: the worst case, with an eviction each time.
func BenchmarkEnqueue(b *testing.B) {
	s := &stuckSender{release: make(chan struct{})}
	cfg := settings("stuck", "")
	cfg.Queue.Size = 64 << 20
	e := startWith(b, cfg, s)
	defer func() {
		close(s.release)
		stop(b, e)
	}()
	body := make([]byte, 1<<10)
	owners := []string{"a", "b", "c", "d"}
	for i := 0; b.Loop(); i++ {
		e.Enqueue(Message{Body: body, Rows: 1, Owner: owners[i%len(owners)]})
	}
}

// BenchmarkFormats is the cost of the file formats per request of the size given by SetBytes.
func BenchmarkFormats(b *testing.B) {
	req := request("app", 0)
	p := req.ResourceProfiles[0].ScopeProfiles[0].Profiles[0]
	for range 5000 {
		p.Samples = append(p.Samples, proto.CloneOf(p.Samples[0]))
	}
	body, err := proto.Marshal(req)
	if err != nil {
		b.Fatal(err)
	}
	for name, encode := range map[string]func([]byte) ([]byte, error){"json": file.Encoder("otlp-json", ""), "pprof": file.Encoder("pprof", "")} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := encode(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
