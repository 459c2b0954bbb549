package wire

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc/encoding"
)

// These are the compressions.
const (
	Gzip         = "gzip"
	Zstd         = "zstd"
	Uncompressed = "none"
)

func init() {
	// gRPC finds compressors only in a registry that the whole process shares. If another package has registered this name, its
	// compressor stays, because it does the same.
	if encoding.GetCompressor(Zstd) == nil {
		encoding.RegisterCompressor(&grpcZstd{})
	}
}

// gzipWriters use level 6. BenchmarkCompress in test/bench compared the compressors with a request of 145 kB:
//
//	gzip, standard library, level 6   4.2 ms   1:8.0   what gRPC's own compressor does
//	gzip, klauspost, level 6          1.5 ms   1:8.3
//	gzip, klauspost, level 1          0.7 ms   1:7.4
//	zstd, klauspost, fastest          0.9 ms   1:9.9
//	zstd, klauspost, default          1.4 ms   1:10.1
//
// A node sends such a request about every ten seconds. A millisecond of CPU time is cheaper than 10 % more bytes on the network
// and in the receiver, so gzip uses level 6. With zstd, the fastest level compresses almost as well as the default.
var gzipWriters = sync.Pool{New: func() any { return gzip.NewWriter(io.Discard) }}

// zstdWriters holds encoders that do not start goroutines.
var zstdWriters = sync.Pool{New: func() any {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		panic(fmt.Sprintf("zstd options: %v", err)) // the options are constants
	}
	return w
}}

// Compressed returns the compressed body.
func Compressed(compression string, body []byte) ([]byte, error) {
	switch compression {
	case Gzip:
		var out bytes.Buffer
		if err := (GRPCGzip{}).Do(&out, body); err != nil {
			return nil, err
		}
		return out.Bytes(), nil
	case Zstd:
		w := zstdWriters.Get().(*zstd.Encoder)
		defer zstdWriters.Put(w)
		return w.EncodeAll(body, nil), nil
	}
	return body, nil
}

// GRPCGzip is a connection's gzip compressor. It implements grpc.Compressor.
type GRPCGzip struct{}

// Type implements grpc.Compressor.
func (GRPCGzip) Type() string { return Gzip }

// Do implements grpc.Compressor.
func (GRPCGzip) Do(w io.Writer, body []byte) error {
	z := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(z)
	z.Reset(w)
	if _, err := z.Write(body); err != nil {
		return err
	}
	return z.Close()
}

// grpcZstd is the zstd compressor for gRPC.
type grpcZstd struct{}

func (*grpcZstd) Name() string { return Zstd }

func (*grpcZstd) Compress(w io.Writer) (io.WriteCloser, error) {
	enc := zstdWriters.Get().(*zstd.Encoder)
	enc.Reset(w)
	return pooledEncoder{enc}, nil
}

// pooledEncoder returns its encoder to the pool on Close.
type pooledEncoder struct{ *zstd.Encoder }

func (p pooledEncoder) Close() error {
	err := p.Encoder.Close()
	zstdWriters.Put(p.Encoder)
	return err
}

func (*grpcZstd) Decompress(r io.Reader) (io.Reader, error) {
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(8<<20))
}
