package receiver

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"sync"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/klauspost/compress/zstd"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // requests may be compressed with it
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

type grpcService struct {
	collectorpb.UnimplementedProfilesServiceServer
	receiver *Receiver
}

func (s *grpcService) Export(ctx context.Context, req *collectorpb.ExportProfilesServiceRequest) (*collectorpb.ExportProfilesServiceResponse, error) {
	return s.receiver.handle(ctx, req)
}

// codec reads requests in the receiver's layout. It belongs to one server.
type codec struct{ layout otlpcheck.Layout }

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("encoding a %T: it is no protobuf message", v)
	}
	return proto.Marshal(m)
}

func (c codec) Unmarshal(body []byte, v any) error {
	m, ok := v.(*collectorpb.ExportProfilesServiceRequest)
	if !ok {
		return fmt.Errorf("decoding a %T: it is no profiles request", v)
	}
	req, err := otlpcheck.Decode(body, c.layout)
	if err != nil {
		return err
	}
	proto.Merge(m, req)
	return nil
}

// zstdName is the name of the compression in gRPC and HTTP.
const zstdName = "zstd"

func init() {
	// gRPC's registry of compressors belongs to the process and may be changed in init only. A
	// compressor that is there already does the same.
	if encoding.GetCompressor(zstdName) == nil {
		encoding.RegisterCompressor(&zstdCompressor{})
	}
}

// zstdCompressor lets a gRPC server read zstd. gRPC itself bounds what comes out of Decompress.
type zstdCompressor struct{ decoders sync.Pool }

func (*zstdCompressor) Name() string { return zstdName }

func (*zstdCompressor) Compress(w io.Writer) (io.WriteCloser, error) {
	return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
}

func (c *zstdCompressor) Decompress(r io.Reader) (io.Reader, error) {
	d, ok := c.decoders.Get().(*zstd.Decoder)
	if !ok {
		var err error
		if d, err = newZstdReader(nil); err != nil {
			return nil, err
		}
	}
	if err := d.Reset(r); err != nil {
		return nil, err
	}
	return &pooledDecoder{Decoder: d, pool: &c.decoders}, nil
}

// pooledDecoder gives its decoder back at the end of the input.
type pooledDecoder struct {
	*zstd.Decoder
	pool *sync.Pool
}

func (p *pooledDecoder) Read(b []byte) (int, error) {
	if p.Decoder == nil {
		return 0, io.EOF
	}
	n, err := p.Decoder.Read(b)
	if errors.Is(err, io.EOF) {
		p.pool.Put(p.Decoder)
		p.Decoder = nil
	}
	return n, err
}

// newZstdReader makes a decoder without goroutines and with bounded memory.
func newZstdReader(r io.Reader) (*zstd.Decoder, error) {
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
}

var errTooLarge = errors.New("the request is too large")

// readBody reads and decompresses a request's body, up to max bytes.
func readBody(r *http.Request, max int) ([]byte, error) {
	var body io.Reader = r.Body
	switch e := r.Header.Get("Content-Encoding"); e {
	case "", "identity":
	case "gzip":
		gz, err := gzip.NewReader(body)
		if err != nil {
			return nil, fmt.Errorf("reading gzip: %w", err)
		}
		body = gz
	case zstdName:
		z, err := newZstdReader(body)
		if err != nil {
			return nil, fmt.Errorf("reading zstd: %w", err)
		}
		defer z.Close()
		body = z
	default:
		return nil, fmt.Errorf("content encoding %q: use gzip, zstd or none", e)
	}
	b, err := io.ReadAll(io.LimitReader(body, int64(max)+1))
	if err != nil {
		return nil, fmt.Errorf("reading the request: %w", err)
	}
	if len(b) > max {
		return nil, errTooLarge
	}
	return b, nil
}

const (
	typeProto = "application/x-protobuf"
	typeJSON  = "application/json"
)

func (r *Receiver) serveHTTP(w http.ResponseWriter, hr *http.Request) {
	contentType, _, err := mime.ParseMediaType(hr.Header.Get("Content-Type"))
	if err != nil || contentType != typeProto && contentType != typeJSON {
		http.Error(w, "use "+typeProto+" or "+typeJSON, http.StatusUnsupportedMediaType)
		return
	}
	body, err := readBody(hr, r.opts.MaxMessageSize)
	switch {
	case errors.Is(err, errTooLarge):
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var req *collectorpb.ExportProfilesServiceRequest
	if contentType == typeJSON {
		req, err = ParseJSON(body)
	} else {
		req, err = otlpcheck.Decode(body, r.opts.Layout)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	resp, err := r.handle(hr.Context(), req)
	if err != nil {
		http.Error(w, err.Error(), httpStatus(err))
		return
	}
	var out []byte
	if contentType == typeJSON {
		out, err = jsonOptions.Marshal(resp)
	} else {
		out, err = proto.Marshal(resp)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	// An error here means that the sender is gone; it will send again.
	_, _ = io.Copy(w, bytes.NewReader(out))
}

// httpStatus maps a gRPC status to HTTP as the OTLP specification's retryable codes want it.
func httpStatus(err error) int {
	switch status.Code(err) {
	case codes.Unavailable, codes.Aborted, codes.Canceled, codes.DeadlineExceeded:
		return http.StatusServiceUnavailable
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.InvalidArgument:
		return http.StatusBadRequest
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	default:
		return http.StatusInternalServerError
	}
}
