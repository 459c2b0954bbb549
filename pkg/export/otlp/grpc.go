package otlp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	colprofiles "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // registers the decompressor for responses
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

const grpcMethod = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"

// maxReconnectDelay limits the time between attempts to connect. So the exporter soon notices that a receiver is available
// again, with any retry settings.
const maxReconnectDelay = 5 * time.Second

// maxGRPCHeaders limits the size of a receiver's headers and trailers, including its error message.
const maxGRPCHeaders = 1 << 20

// rawCodec passes the bytes of requests and responses through. Its name is "proto" because the content type contains it. It is
// passed with each call, because registering it would replace the process's codec with this name.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// maxTimeouts is the number of consecutive sends without a response after which the connection is replaced. If a receiver's
// machine has crashed or its address has moved, TCP alone needs a quarter of an hour to notice.
const maxTimeouts = 3

// GRPC is the otlp-grpc transport. It owns its connection. Send is safe for concurrent use.
type GRPC struct {
	auth      *Auth
	warn      func(kind, format string, args ...any)
	diagnosis diagnosis
	layout    string
	call      []grpc.CallOption
	dial      func() (*grpc.ClientConn, error)

	mu       sync.Mutex
	conn     *grpc.ClientConn
	timeouts int // number of consecutive timeouts
	closed   bool
}

// NewGRPC returns an exporter's otlp-grpc transport. It does not connect.
func NewGRPC(cfg config.Exporter, a *Auth, warn func(kind, format string, args ...any)) (*GRPC, error) {
	var creds credentials.TransportCredentials
	if cfg.Insecure {
		creds = insecure.NewCredentials()
	} else {
		source, err := newTLSSource(cfg.TLS, func(err error) { warn("tls reload", "%v", err) })
		if err != nil {
			return nil, err
		}
		creds = reloadingCreds{credentials.NewTLS(source.current), source}
	}
	reconnect := min(max(cfg.Retry.InitialInterval, 10*time.Millisecond), maxReconnectDelay)
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithUserAgent(userAgent),
		grpc.WithDisableServiceConfig(), // otherwise, a DNS TXT record could change timeouts and retries
		grpc.WithDisableRetry(),
		grpc.WithStatsHandler(wireCounter{}),
		grpc.WithMaxHeaderListSize(maxGRPCHeaders),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: reconnect, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxReconnectDelay},
			MinConnectTimeout: cfg.Timeout,
		}),
	}
	if cfg.BalancerName != "" {
		opts = append(opts, grpc.WithDefaultServiceConfig(fmt.Sprintf(`{"loadBalancingConfig":[{%q:{}}]}`, cfg.BalancerName)))
	}
	if cfg.Keepalive.Time > 0 {
		opts = append(opts, grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time:                cfg.Keepalive.Time,
			Timeout:             cfg.Keepalive.Timeout,
			PermitWithoutStream: cfg.Keepalive.PermitWithoutStream,
		}))
	}
	s := &GRPC{auth: a, warn: warn, diagnosis: newDiagnosis(cfg, cfg.Insecure), layout: cfg.OTLPVersion}
	s.call = []grpc.CallOption{grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(maxResponse)}
	switch cfg.Compression {
	case wire.Gzip:
		// This compressor belongs to the connection. A registered compressor would belong to the process, in which Inspektor
		// Gadget can use or replace gRPC's gzip.
		opts = append(opts, grpc.WithCompressor(wire.GRPCGzip{})) //nolint:staticcheck // deprecated in favour of the registry
	case wire.Zstd:
		s.call = append(s.call, grpc.UseCompressor(wire.Zstd))
	}
	target := cfg.Endpoint
	if proxy := cfg.Proxy(); proxy != nil && !strings.HasPrefix(target, "unix:") {
		// With the scheme passthrough, the proxy resolves the host name.
		opts = append(opts, grpc.WithContextDialer(dialThrough(proxy)))
		target = "passthrough:///" + hostPort(target)
	}
	s.dial = func() (*grpc.ClientConn, error) { return grpc.NewClient(target, opts...) }
	var err error
	if s.conn, err = s.dial(); err != nil {
		return nil, fmt.Errorf("endpoint %q: %w", cfg.Endpoint, err)
	}
	return s, nil
}

// hostPort returns the host:port of a target, without a resolver prefix.
func hostPort(target string) string {
	for _, resolver := range []string{"dns:", "passthrough:"} {
		if rest, ok := strings.CutPrefix(target, resolver); ok && strings.Contains(rest, ":") {
			target = rest
		}
	}
	return target[strings.LastIndexByte(target, '/')+1:]
}

// Send makes one attempt.
func (s *GRPC) Send(ctx context.Context, m wire.Message) (out attempt.Outcome) {
	body, err := wire.ToLayout(m.Body, s.layout)
	if err != nil {
		return attempt.NotEncoded(err)
	}
	req, none := s.auth.request(ctx, s.layout, s.warn)
	if none != nil {
		return *none
	}
	for _, h := range req.headers {
		ctx = metadata.AppendToOutgoingContext(ctx, h.Key, string(h.Value))
	}
	var sent atomic.Int64
	defer func() { out.Sent = sent.Load() }()
	ctx = context.WithValue(ctx, sentKey{}, &sent)
	var resp []byte
	conn := s.current()
	err = conn.Invoke(ctx, grpcMethod, body, &resp, s.call...)
	s.answered(conn, !errors.Is(ctx.Err(), context.DeadlineExceeded))
	if err != nil {
		out = grpcOutcome(status.Convert(err), len(body), s.diagnosis)
	} else {
		out = responseOutcome(resp, proto.Unmarshal)
	}
	s.auth.observe(req, status.Code(err) == codes.Unauthenticated, &out)
	return out
}

// wireCounter adds a request's compressed bytes to the counter in the request's context.
type wireCounter struct{}

type sentKey struct{}

// TagRPC implements stats.Handler.
func (wireCounter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (wireCounter) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if out, ok := s.(*stats.OutPayload); ok {
		if sent, ok := ctx.Value(sentKey{}).(*atomic.Int64); ok {
			sent.Add(int64(out.WireLength))
		}
	}
}

// TagConn implements stats.Handler.
func (wireCounter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (wireCounter) HandleConn(context.Context, stats.ConnStats) {}

func (s *GRPC) current() *grpc.ClientConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn
}

// answered records whether a send over conn got any response. After maxTimeouts sends without a response, it replaces the
// connection. Requests in flight on the old connection then fail and are retried.
func (s *GRPC) answered(conn *grpc.ClientConn, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if conn != s.conn || s.closed {
		return
	}
	if yes {
		s.timeouts = 0
		return
	}
	if s.timeouts++; s.timeouts < maxTimeouts {
		return
	}
	fresh, err := s.dial()
	if err != nil {
		return // keep the old connection
	}
	s.conn, s.timeouts = fresh, 0
	if err := conn.Close(); err != nil {
		s.warn("close", "closing the previous connection: %v", err)
	}
}

// Close closes the connection.
func (s *GRPC) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.conn.Close()
}

// grpcOutcome converts a status other than OK into an outcome. bodyLen is the length of the request.
func grpcOutcome(st *status.Status, bodyLen int, d diagnosis) attempt.Outcome {
	out := attempt.Outcome{
		Verdict: attempt.Rejected,
		What:    "gRPC status " + st.Code().String(),
		Words:   st.Message(),
		Hint:    d.hint(st.Message()),
	}
	wait, asked := retryInfo(st.Proto().GetDetails())
	switch {
	case st.Code() == codes.ResourceExhausted && responseTooLarge(st.Message(), bodyLen):
		out.What = fmt.Sprintf("the receiver's response was larger than %d bytes", maxResponse)
	case st.Code() == codes.ResourceExhausted && strings.Contains(st.Message(), "larger than max"):
		out.Verdict = attempt.TooLarge
	case st.Code() == codes.ResourceExhausted:
		if asked {
			out.Verdict = attempt.Retryable
			out.Wait = max(askedWait(wait), 1)
		}
	case retryableCodes[st.Code()]:
		out.Verdict = attempt.Retryable
		if asked {
			out.Wait = askedWait(wait)
		}
		if st.Code() == codes.DeadlineExceeded && out.Hint == "" {
			out.Hint = d.hint(context.DeadlineExceeded.Error()) // the receiver's message varies
		}
	case st.Code() == codes.Unimplemented && strings.Contains(st.Message(), "grpc-encoding"):
		out.Hint = "the receiver does not support this compression: set compression: gzip"
	case st.Code() == codes.Unimplemented:
		out.Hint = "the receiver does not support this version of the profiles protocol: " +
			"check the endpoint, and whether the receiver has profiles turned on (the Collector: --feature-gates=service.profilesSupport)"
	case st.Code() == codes.Unauthenticated, st.Code() == codes.PermissionDenied:
		out.Hint = "check the settings auth and headers"
	}
	return out
}

// responseTooLarge reports whether this side rejected a response because of its size. gRPC uses the same message if the receiver
// rejects a request, so only the size distinguishes the two cases.
func responseTooLarge(msg string, bodyLen int) bool {
	if bodyLen > maxResponse {
		return false
	}
	return strings.Contains(msg, fmt.Sprintf("vs. %d)", maxResponse)) ||
		strings.Contains(msg, fmt.Sprintf("larger than max %d", maxResponse)) ||
		strings.Contains(msg, fmt.Sprintf("max size of %d", maxResponse))
}

// responseOutcome converts the response to an accepted request into an outcome. If no profiles were rejected, the message of a
// partial success is a warning (https://opentelemetry.io/docs/specs/otlp/#partial-success).
func responseOutcome(resp []byte, unmarshal func([]byte, proto.Message) error) attempt.Outcome {
	var msg colprofiles.ExportProfilesServiceResponse
	if err := unmarshal(resp, &msg); err != nil {
		return attempt.Outcome{Verdict: attempt.Accepted, What: "a response that is not an ExportProfilesServiceResponse", Hint: "check that the endpoint is an OTLP receiver"}
	}
	p := msg.GetPartialSuccess()
	out := attempt.Outcome{Verdict: attempt.Accepted, Words: p.GetErrorMessage(), RejectedProfiles: p.GetRejectedProfiles()}
	switch {
	case p.GetRejectedProfiles() > 0:
		out.Verdict = attempt.Partial
		out.What = "partial success"
	case p.GetErrorMessage() != "":
		out.What = "a warning"
	}
	return out
}
