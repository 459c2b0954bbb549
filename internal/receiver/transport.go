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

	"github.com/klauspost/compress/zstd"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // requests may be compressed with it, or with zstd, which package wire registers
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

type grpcService struct {
	collectorpb.UnimplementedProfilesServiceServer
	receiver *Receiver
}

func (s *grpcService) Export(ctx context.Context, req *collectorpb.ExportProfilesServiceRequest) (*collectorpb.ExportProfilesServiceResponse, error) {
	return s.receiver.handle(ctx, req)
}

var errTooLarge = errors.New("the request is too large")

// ReadBody reads and decompresses a request's body, up to max bytes.
func ReadBody(r *http.Request, max int) ([]byte, error) {
	var body io.Reader = r.Body
	switch e := r.Header.Get("Content-Encoding"); e {
	case "", "identity":
	case "gzip":
		gz, err := gzip.NewReader(body)
		if err != nil {
			return nil, fmt.Errorf("reading gzip: %w", err)
		}
		body = gz
	case "zstd":
		z, err := zstd.NewReader(body, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
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
	body, err := ReadBody(hr, r.opts.MaxMessageSize)
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
		req = &collectorpb.ExportProfilesServiceRequest{}
		err = proto.Unmarshal(body, req)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	resp, err := r.handle(hr.Context(), req)
	if err != nil {
		http.Error(w, err.Error(), HTTPStatus(err))
		return
	}
	var out []byte
	if contentType == typeJSON {
		out, err = protojson.Marshal(resp)
	} else {
		out, err = proto.Marshal(resp)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	// An error means that the sender has disconnected. It will send again.
	_, _ = io.Copy(w, bytes.NewReader(out))
}

// HTTPStatus maps a gRPC status to HTTP according to the retryable codes in the OTLP specification.
func HTTPStatus(err error) int {
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
