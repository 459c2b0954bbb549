// Package recvtest provides receivers of OTLP profiles for tests. They are real servers on the loopback interface. They record
// requests and answer as the test specifies.
package recvtest

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
	colprofiles "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	_ "google.golang.org/grpc/encoding/gzip" // registers the decompressor
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
)

// Request is a received request.
type Request struct {
	Number   int // 1 for the first request of this receiver
	Profiles *colprofiles.ExportProfilesServiceRequest
	// Metadata are gRPC's metadata or HTTP's headers, with lower-case keys.
	Metadata metadata.MD
	// Client is the common name in the client's certificate.
	Client string
	// HTTP and Body are set by the HTTP receiver only. Body is decompressed; for JSON, Profiles
	// is nil.
	HTTP *http.Request
	Body []byte
}

// Name is the service.name of the request's first resource. Tests use it to distinguish requests.
func (r Request) Name() string {
	return dictionary.Of(r.Profiles).OfResource(dictionary.At(r.Profiles.GetResourceProfiles(), 0), "service.name")
}

// log keeps the requests of a receiver.
type log struct {
	mu   sync.Mutex
	list []Request
}

func (l *log) add(r Request) Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Number = len(l.list) + 1
	l.list = append(l.list, r)
	return r
}

// Requests returns the requests received so far.
func (l *log) Requests() []Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

// Names returns the names of the requests received so far, in order.
func (l *log) Names() []string {
	list := l.Requests()
	names := make([]string, 0, len(list))
	for _, r := range list {
		names = append(names, r.Name())
	}
	return names
}

// Answer decides on the answer to a request. An error is a gRPC status. The HTTP receiver converts it to the corresponding HTTP
// status.
type Answer = func(context.Context, Request) (*colprofiles.ExportProfilesServiceResponse, error)

// Start starts a receiver for a transport. The receiver ends with the test. Without an Answer, it accepts everything. security
// can be nil.
func Start(t testing.TB, transport string, security *tls.Config, answer Answer) (endpoint string, requests func() []Request) {
	t.Helper()
	if transport == config.TransportGRPC {
		r := StartGRPC(t, GRPCConfig{TLS: security, Answer: answer})
		return r.Addr, r.Requests
	}
	cfg := HTTPConfig{TLS: security}
	if answer != nil {
		cfg.Answer = func(w http.ResponseWriter, r Request) {
			resp, err := answer(r.HTTP.Context(), r)
			if err != nil {
				http.Error(w, status.Convert(err).Message(), httpStatus(err))
				return
			}
			Accept(w, resp)
		}
	}
	r := StartHTTP(t, cfg)
	return r.URL, r.Requests
}

// GRPCConfig configures a gRPC receiver. The zero value accepts everything.
type GRPCConfig struct {
	// Addr is the listen address, host:port or unix:path. If it is empty, the receiver uses a free loopback port.
	Addr    string
	TLS     *tls.Config
	Options []grpc.ServerOption
	// Answer decides on the answer. If it is nil, the receiver accepts everything.
	Answer Answer
	// Listener, if set, wraps the listener.
	Listener func(net.Listener) net.Listener
}

// GRPC is a gRPC receiver.
type GRPC struct {
	log
	Addr   string
	answer Answer
	server *grpc.Server
	done   chan struct{}
	colprofiles.UnimplementedProfilesServiceServer
}

// StartGRPC starts a receiver that ends with the test.
func StartGRPC(t testing.TB, cfg GRPCConfig) *GRPC {
	t.Helper()
	if cfg.Addr == "" {
		cfg.Addr = "127.0.0.1:0"
	}
	network, addr := "tcp", cfg.Addr
	if path, ok := strings.CutPrefix(cfg.Addr, "unix:"); ok {
		network, addr = "unix", path
	}
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), network, addr)
	if err != nil {
		t.Fatalf("listen on %s: %v", cfg.Addr, err)
	}
	r := &GRPC{Addr: lis.Addr().String(), answer: cfg.Answer, done: make(chan struct{})}
	if cfg.Listener != nil {
		lis = cfg.Listener(lis)
	}
	opts := cfg.Options
	if cfg.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(cfg.TLS)))
	}
	r.server = grpc.NewServer(opts...)
	colprofiles.RegisterProfilesServiceServer(r.server, r)
	go func() {
		defer close(r.done)
		_ = r.server.Serve(lis)
	}()
	t.Cleanup(r.Stop)
	return r
}

// rawCodec drops messages undecoded.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(any) (mem.BufferSlice, error) { return nil, nil }

func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }

// StartRaw starts a receiver that accepts everything, and does not spend a benchmark's time on decoding it.
func StartRaw(t testing.TB, opts ...grpc.ServerOption) (addr string) {
	t.Helper()
	opts = append(opts, grpc.ForceServerCodecV2(rawCodec{}), grpc.MaxRecvMsgSize(64<<20))
	return StartGRPC(t, GRPCConfig{Options: opts}).Addr
}

// Export implements the profiles service.
func (r *GRPC) Export(ctx context.Context, msg *colprofiles.ExportProfilesServiceRequest) (*colprofiles.ExportProfilesServiceResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	p, _ := peer.FromContext(ctx)
	info, _ := p.AuthInfo.(credentials.TLSInfo)
	req := r.add(Request{Profiles: msg, Metadata: md, Client: clientName(&info.State)})
	if r.answer == nil {
		return &colprofiles.ExportProfilesServiceResponse{}, nil
	}
	return r.answer(ctx, req)
}

// Stop closes all connections and stops listening. It can be called twice.
func (r *GRPC) Stop() {
	r.server.Stop()
	<-r.done
}

// clientName returns the common name in the client's certificate, or an empty string without a certificate.
func clientName(state *tls.ConnectionState) string {
	if state == nil || len(state.PeerCertificates) == 0 {
		return ""
	}
	return state.PeerCertificates[0].Subject.CommonName
}

// HTTPConfig configures an HTTP receiver. The zero value accepts everything.
type HTTPConfig struct {
	TLS *tls.Config
	// Answer writes the response. If it is nil, the receiver accepts everything.
	Answer func(http.ResponseWriter, Request)
}

// HTTP is an HTTP receiver.
type HTTP struct {
	log
	URL    string
	server *httptest.Server
	answer func(http.ResponseWriter, Request)
}

// StartHTTP starts a receiver that ends with the test.
func StartHTTP(t testing.TB, cfg HTTPConfig) *HTTP {
	t.Helper()
	r := &HTTP{answer: cfg.Answer}
	r.server = httptest.NewUnstartedServer(http.HandlerFunc(r.serve))
	r.server.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
	if cfg.TLS != nil {
		r.server.TLS = cfg.TLS
		r.server.EnableHTTP2 = true
		r.server.StartTLS()
	} else {
		r.server.Start()
	}
	r.URL = r.server.URL
	t.Cleanup(func() {
		r.server.CloseClientConnections()
		r.server.Close()
	})
	return r
}

func (r *HTTP) serve(w http.ResponseWriter, in *http.Request) {
	body, err := readBody(in)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	md := metadata.MD{}
	for k, v := range in.Header {
		md.Append(k, v...)
	}
	req := Request{HTTP: in, Body: body, Metadata: md, Client: clientName(in.TLS)}
	switch in.Header.Get("Content-Type") {
	case "application/x-protobuf":
		req.Profiles = &colprofiles.ExportProfilesServiceRequest{}
		if err := proto.Unmarshal(body, req.Profiles); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	case "application/json":
		if !json.Valid(body) {
			http.Error(w, "not JSON", http.StatusBadRequest)
			return
		}
	default:
		http.Error(w, "content type", http.StatusUnsupportedMediaType)
		return
	}
	req = r.add(req)
	if r.answer == nil {
		Accept(w, nil)
		return
	}
	r.answer(w, req)
}

// readBody reads and decompresses a request's body.
func readBody(r *http.Request) ([]byte, error) {
	switch e := r.Header.Get("Content-Encoding"); e {
	case "", "identity":
		return io.ReadAll(r.Body)
	case "gzip":
		gz, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, err
		}
		return io.ReadAll(gz)
	case "zstd":
		z, err := zstd.NewReader(r.Body, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		return io.ReadAll(z)
	default:
		return nil, fmt.Errorf("content encoding %q: use gzip, zstd or none", e)
	}
}

// httpStatus maps a gRPC status to HTTP according to the retryable codes in the OTLP specification.
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

// Accept answers 200 with the given response, which can be nil.
func Accept(w http.ResponseWriter, resp *colprofiles.ExportProfilesServiceResponse) {
	b, err := proto.Marshal(resp)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(b)
}
