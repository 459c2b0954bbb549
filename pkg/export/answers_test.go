package export

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	colprofiles "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
)

func ok() (*colprofiles.ExportProfilesServiceResponse, error) {
	return &colprofiles.ExportProfilesServiceResponse{}, nil
}

// always returns an Answer that gives every request the same result.
func always(resp *colprofiles.ExportProfilesServiceResponse, err error) recvtest.Answer {
	return func(context.Context, recvtest.Request) (*colprofiles.ExportProfilesServiceResponse, error) {
		return resp, err
	}
}

// firstThenOK returns an Answer that fails the first request with err and accepts the others.
func firstThenOK(err error) recvtest.Answer {
	return func(_ context.Context, r recvtest.Request) (*colprofiles.ExportProfilesServiceResponse, error) {
		if r.Number == 1 {
			return nil, err
		}
		return ok()
	}
}

func withRetryInfo(t *testing.T, code codes.Code, delay time.Duration) error {
	t.Helper()
	st, err := status.New(code, "busy").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
	require.NoError(t, err)
	return st.Err()
}

func TestEachGRPCCode(t *testing.T) {
	// https://opentelemetry.io/docs/specs/otlp/#failures
	retried := map[codes.Code]bool{
		codes.Canceled: true, codes.DeadlineExceeded: true, codes.Aborted: true,
		codes.OutOfRange: true, codes.Unavailable: true, codes.DataLoss: true,
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		t.Run(code.String(), func(t *testing.T) {
			r := recvtest.StartGRPC(t, recvtest.GRPCConfig{Answer: firstThenOK(status.Error(code, "no luck"))})
			e, logs := sent(t, settings(config.TransportGRPC, r.Addr))
			s := balanced(t, e)
			if retried[code] {
				require.Len(t, r.Requests(), 2)
				require.Equal(t, int64(10), s.Rows.Delivered)
				require.Equal(t, int64(1), s.Retries)
				first, second := r.Requests()[0].Profiles, r.Requests()[1].Profiles
				require.True(t, proto.Equal(first, second), "a retry carries the same bytes, profile_id included")
			} else {
				require.Len(t, r.Requests(), 1)
				require.Equal(t, map[Reason]int64{ReasonRejected: 10}, s.Rows.Dropped)
				require.Equal(t, int64(1), s.FailedSamples)
			}
			stop(t, e)
			require.Contains(t, logs.String(), "no luck")
			require.Contains(t, logs.String(), code.String())
		})
	}
}

func TestEachHTTPStatus(t *testing.T) {
	want := map[int]Reason{}
	for _, code := range []int{300, 301, 302, 303, 307, 308, 400, 401, 402, 403, 404, 405, 408, 409, 415, 422, 431, 500, 501, 505, 511} {
		want[code] = ReasonRejected
	}
	want[413] = ReasonTooLarge
	for _, code := range []int{429, 502, 503, 504} {
		want[code] = "" // retried
	}
	for _, code := range []int{200, 201, 202, 204} {
		want[code] = "delivered"
	}
	for code, reason := range want {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			r := recvtest.StartHTTP(t, recvtest.HTTPConfig{Answer: func(w http.ResponseWriter, r recvtest.Request) {
				if r.Number > 1 {
					recvtest.Accept(w, nil)
					return
				}
				w.Header().Set("Location", "http://127.0.0.1:1/elsewhere?key=s3cret")
				w.WriteHeader(code)
			}})
			cfg := settings(config.TransportHTTP, r.URL)
			cfg.Compression = "zstd"
			e, logs := sent(t, cfg)
			s := balanced(t, e)
			require.Equal(t, []string{"ig-otel-profiles"}, r.Requests()[0].Metadata.Get("user-agent"))
			switch reason {
			case "", "delivered":
				require.Equal(t, int64(10), s.Rows.Delivered)
				require.Len(t, r.Requests(), map[Reason]int{"": 2, "delivered": 1}[reason])
			default:
				require.Len(t, r.Requests(), 1)
				require.Equal(t, map[Reason]int64{reason: 10}, s.Rows.Dropped)
				stop(t, e)
				require.Contains(t, logs.String(), "HTTP status "+strconv.Itoa(code))
				require.Equal(t, code < 400, strings.Contains(logs.String(), "127.0.0.1:1/elsewhere"), "where a redirect leads")
				require.NotContains(t, logs.String(), "s3cret")
				require.Equal(t, code == 400, strings.Contains(logs.String(), "might not support this compression"))
				require.Equal(t, code == 404 || code == 405, strings.Contains(logs.String(), "the endpoint does not serve"))
			}
		})
	}
}

func TestResourceExhausted(t *testing.T) {
	t.Run("with RetryInfo it is retried", func(t *testing.T) {
		r := recvtest.StartGRPC(t, recvtest.GRPCConfig{Answer: firstThenOK(withRetryInfo(t, codes.ResourceExhausted, time.Millisecond))})
		e, _ := sent(t, settings(config.TransportGRPC, r.Addr))
		require.Equal(t, int64(10), e.Stats().Rows.Delivered)
	})
	t.Run("a receiver with a small limit", func(t *testing.T) {
		r := recvtest.StartGRPC(t, recvtest.GRPCConfig{Options: []grpc.ServerOption{grpc.MaxRecvMsgSize(100_000)}})
		for _, compression := range []string{"none", "gzip", "zstd"} {
			cfg := settings(config.TransportGRPC, r.Addr)
			cfg.Compression = compression
			e, logs := open(t, cfg)
			e.Enqueue(message(t, "app", 200_000))
			e.Enqueue(message(t, "app", 10))
			drainAll(t, e)
			s := balanced(t, e)
			require.Equal(t, map[Reason]int64{ReasonTooLarge: 10}, s.Rows.Dropped)
			require.Equal(t, int64(10), s.Rows.Delivered)
			stop(t, e)
			require.Contains(t, logs.String(), "batch.max_request_size")
		}
	})
}

// Both transports return the wait that the receiver requested, limited to minutes. See TestShutdownRespectsTheReceiver.
func TestAskedToWait(t *testing.T) {
	for transport, endpoint := range map[string]string{
		config.TransportGRPC: recvtest.StartGRPC(t, recvtest.GRPCConfig{Answer: always(nil, withRetryInfo(t, codes.Unavailable, 200*365*24*time.Hour))}).Addr,
		config.TransportHTTP: recvtest.StartHTTP(t, recvtest.HTTPConfig{Answer: func(w http.ResponseWriter, _ recvtest.Request) {
			w.Header().Set("Retry-After", "300")
			w.WriteHeader(http.StatusTooManyRequests)
		}}).URL,
	} {
		t.Run(transport, func(t *testing.T) {
			e, _ := open(t, settings(transport, endpoint))
			out := e.to.Send(t.Context(), message(t, "app", 0))
			require.Equal(t, attempt.Retryable, out.Verdict)
			require.GreaterOrEqual(t, out.Wait, 5*time.Minute)
			require.LessOrEqual(t, out.Wait, 5*time.Minute+30*time.Second)
		})
	}
}

func TestPartialSuccess(t *testing.T) {
	resp := func(n int64, words string) *colprofiles.ExportProfilesServiceResponse {
		return &colprofiles.ExportProfilesServiceResponse{PartialSuccess: &colprofiles.ExportProfilesPartialSuccess{RejectedProfiles: n, ErrorMessage: words}}
	}
	words := "labels too long\x1b[31m"
	for name, tc := range map[string]struct {
		resp *colprofiles.ExportProfilesServiceResponse
		want RowCounts
	}{
		"some left out":  {resp(1, words), RowCounts{Enqueued: 10, Partial: 10, Dropped: map[Reason]int64{}}},
		"all left out":   {resp(2, words), RowCounts{Enqueued: 10, Dropped: map[Reason]int64{ReasonRejected: 10}}},
		"only a warning": {resp(0, words), RowCounts{Enqueued: 10, Delivered: 10, Dropped: map[Reason]int64{}}},
		"a negative one": {resp(-1, words), RowCounts{Enqueued: 10, Delivered: 10, Dropped: map[Reason]int64{}}},
	} {
		for _, transport := range []string{"grpc", "http", "http with JSON"} {
			t.Run(name+"/"+transport, func(t *testing.T) {
				cfg := settings(config.TransportHTTP, "")
				var requests func() []recvtest.Request
				if transport == "grpc" {
					r := recvtest.StartGRPC(t, recvtest.GRPCConfig{Answer: always(tc.resp, nil)})
					cfg = settings(config.TransportGRPC, r.Addr)
					requests = r.Requests
				} else {
					r := recvtest.StartHTTP(t, recvtest.HTTPConfig{Answer: func(w http.ResponseWriter, _ recvtest.Request) {
						if transport == "http" {
							recvtest.Accept(w, tc.resp)
							return
						}
						b, err := protojson.Marshal(tc.resp)
						if err != nil {
							panic(err)
						}
						w.Header().Set("Content-Type", "application/json; charset=utf-8")
						_, _ = w.Write(b)
					}})
					cfg.Endpoint, requests = r.URL, r.Requests
					if transport != "http" {
						cfg.Encoding = "json"
					}
				}
				e, logs := open(t, cfg)
				m := message(t, "app", 0)
				m.Profiles = 2
				e.Enqueue(m)
				drainAll(t, e)
				require.Equal(t, tc.want, balanced(t, e).Rows)
				require.Len(t, requests(), 1, "never sent again")
				stop(t, e)
				require.Contains(t, logs.String(), `labels too long`)
				require.NotContains(t, logs.String(), "\x1b[31m")
			})
		}
	}
}

func TestRetryLimits(t *testing.T) {
	down := always(nil, status.Error(codes.Unavailable, "down"))
	t.Run("disabled", func(t *testing.T) {
		r := recvtest.StartGRPC(t, recvtest.GRPCConfig{Answer: down})
		cfg := settings(config.TransportGRPC, r.Addr)
		cfg.Retry.Enabled = false
		e, _ := sent(t, cfg)
		require.Equal(t, map[Reason]int64{ReasonRetryDisabled: 10}, balanced(t, e).Rows.Dropped)
		require.Len(t, r.Requests(), 1)
	})
	// The simulated attempts take no time, so only the time since the first one can exceed the limit.
	t.Run("max_elapsed_time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			cfg := settings("down", "")
			cfg.Retry.MaxElapsedTime = time.Minute
			to := &outageSender{down: true}
			e := startWith(t, cfg, to)
			e.Enqueue(Message{Body: []byte("x"), Rows: 10})
			time.Sleep(time.Minute - time.Second)
			require.Equal(t, int64(10), balanced(t, e).Rows.Held)
			time.Sleep(2 * time.Second)
			require.Equal(t, map[Reason]int64{ReasonMaxElapsedTime: 10}, balanced(t, e).Rows.Dropped)
			require.NoError(t, e.Shutdown(t.Context()))
			require.Greater(t, to.attempts, 1)
		})
	})
}

// A message that the receiver cannot accept must not block other messages.
func TestOneBadMessageDoesNotBlock(t *testing.T) {
	r := recvtest.StartGRPC(t, recvtest.GRPCConfig{Answer: func(_ context.Context, r recvtest.Request) (*colprofiles.ExportProfilesServiceResponse, error) {
		if r.Name() == "bad" {
			return nil, status.Error(codes.Unavailable, "chokes on it")
		}
		return ok()
	}})
	cfg := settings(config.TransportGRPC, r.Addr)
	cfg.Queue.NumConsumers = 1
	e, _ := open(t, cfg)
	e.Enqueue(message(t, "bad", 0))
	for range 50 {
		e.Enqueue(message(t, "good", 0))
	}
	require.Eventually(t, func() bool { return e.Stats().Rows.Delivered == 500 }, 20*time.Second, time.Millisecond)
	require.Equal(t, int64(10), balanced(t, e).Rows.Held)
}

func TestWrongProtocolHints(t *testing.T) {
	pair := recvtest.NewCA(t).Issue(t, "server", time.Now().Add(time.Hour))
	grpcPlain, grpcTLS := recvtest.StartGRPC(t, recvtest.GRPCConfig{}).Addr, recvtest.StartGRPC(t, recvtest.GRPCConfig{TLS: pair.ServerTLS(t)}).Addr
	httpPlain := strings.TrimPrefix(recvtest.StartHTTP(t, recvtest.HTTPConfig{}).URL, "http://")
	httpTLS := strings.TrimPrefix(recvtest.StartHTTP(t, recvtest.HTTPConfig{TLS: pair.ServerTLS(t)}).URL, "https://")
	old := httptest.NewUnstartedServer(http.NotFoundHandler())
	old.TLS = pair.ServerTLS(t)
	old.StartTLS() // HTTP/1.1 only
	t.Cleanup(old.Close)
	grpcAnswers := func(answer recvtest.Answer) string {
		return recvtest.StartGRPC(t, recvtest.GRPCConfig{Answer: answer}).Addr
	}
	httpAnswers := func(answer func(http.ResponseWriter, recvtest.Request)) string {
		return recvtest.StartHTTP(t, recvtest.HTTPConfig{Answer: answer}).URL
	}

	unchanged := func(*config.Exporter) {}
	secure := func(cfg *config.Exporter) { cfg.Insecure = false }
	unverified := func(cfg *config.Exporter) { cfg.Insecure, cfg.TLS.InsecureSkipVerify = false, true }
	impatient := func(cfg *config.Exporter) { cfg.Timeout = 50 * time.Millisecond }
	written := func(scheme, where string) func(*config.Exporter) {
		return func(cfg *config.Exporter) {
			cfg.Insecure, cfg.Written = scheme == "http", config.Written{Scheme: scheme, Where: where}
		}
	}
	speaking := func(version string) func(*config.Exporter) {
		return func(cfg *config.Exporter) { cfg.OTLPVersion = version }
	}
	const overGRPC, overHTTP = config.TransportGRPC, config.TransportHTTP
	for name, tc := range map[string]struct {
		transport, endpoint string
		change              func(*config.Exporter)
		want                []string
	}{
		"gRPC: TLS to plain text": {overGRPC, grpcPlain, secure,
			[]string{"speaks plain text", "set insecure: true, or write http:// in front of the endpoint,"}},
		"gRPC: https:// to plain text": {overGRPC, grpcPlain, written("https", "--otel-profiles-endpoint"),
			[]string{"speaks plain text", "write http:// instead of https:// in the endpoint (--otel-profiles-endpoint)"}},
		"gRPC: plain text to TLS": {overGRPC, grpcTLS, unchanged, []string{"receiver probably speaks TLS", "set insecure: false"}},
		"gRPC: http:// to TLS": {overGRPC, grpcTLS, written("http", "config.yaml"),
			[]string{"receiver probably speaks TLS", "write https:// instead of http:// in the endpoint (config.yaml)"}},
		"HTTP: TLS to plain text": {overHTTP, "https://" + httpPlain, unchanged,
			[]string{"speaks plain text", "write http:// instead of https://"}},
		"HTTP: plain text to TLS": {overHTTP, "http://" + httpTLS, unchanged,
			[]string{"receiver probably speaks TLS", "write https:// instead of http://"}},
		"gRPC at an HTTP port": {overGRPC, httpPlain, unchanged,
			[]string{"speaks HTTP on this port, not gRPC", "set exporter: otlp-http", "4317"}},
		"gRPC at an HTTP port, by a variable": {overGRPC, httpPlain, written("http", "OTEL_EXPORTER_OTLP_ENDPOINT"),
			[]string{"set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "in the endpoint (OTEL_EXPORTER_OTLP_ENDPOINT)"}},
		"gRPC at an HTTPS port": {overGRPC, old.Listener.Addr().String(), unverified, []string{"speaks HTTP on this port, not gRPC"}},
		"HTTP at a gRPC port": {overHTTP, "http://" + grpcPlain, unchanged,
			[]string{"speaks gRPC on this port", "set exporter: otlp-grpc", "4318"}},
		"HTTPS at a gRPC port": {overHTTP, "https://" + grpcTLS, unverified,
			[]string{"speaks gRPC on this port", "set exporter: otlp-grpc"}},
		"gRPC: nobody there": {overGRPC, "127.0.0.1:1", unchanged, []string{"nothing listens at this address"}},
		"gRPC: unknown host": {overGRPC, "no-such-host.invalid:4317", unchanged,
			[]string{"cannot resolve the host's name: check the endpoint"}},
		"HTTP: unknown host": {overHTTP, "http://no-such-host.invalid:4318", unchanged,
			[]string{"cannot resolve the host's name: check the endpoint"}},
		"gRPC: unknown authority": {overGRPC, grpcTLS, secure, []string{"set tls.ca_file"}},
		"HTTP: unknown authority": {overHTTP, "https://" + httpTLS, unchanged, []string{"set tls.ca_file"}},
		// As Parca and Pyroscope answer.
		"gRPC: no zstd": {overGRPC,
			grpcAnswers(always(nil, status.Error(codes.Unimplemented, `grpc: Decompressor is not installed for grpc-encoding "zstd"`))), unchanged,
			[]string{"does not support this compression", "set compression: gzip"}},
		"gRPC: no answer": {overGRPC, grpcAnswers(hang), impatient, []string{"no answer within timeout (50ms)"}},
		"HTTP: no answer": {overHTTP, httpAnswers(func(_ http.ResponseWriter, r recvtest.Request) { <-r.HTTP.Context().Done() }), impatient,
			[]string{"no answer within timeout (50ms)"}},
		// As a Collector answers.
		"gRPC: another layout": {overGRPC,
			grpcAnswers(always(nil, status.Error(codes.Internal, "grpc: error unmarshalling request: proto: wrong wireType = 2 for field LinkIndex"))), speaking("1.11"),
			[]string{`otlp_version \"1.11\"`}},
		"HTTP: another layout": {overHTTP, httpAnswers(func(w http.ResponseWriter, _ recvtest.Request) {
			http.Error(w, "proto: wrong wireType = 2 for field LinkIndex", http.StatusBadRequest)
		}), speaking("1.9"), []string{`otlp_version \"1.9\"`}},
		"gRPC: no profiles service": {overGRPC, grpcAnswers(always(nil, status.Error(codes.Unimplemented, "unknown service"))), unchanged,
			[]string{"service.profilesSupport"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := settings(tc.transport, tc.endpoint)
			tc.change(&cfg)
			e, logs := open(t, cfg)
			e.Enqueue(message(t, "app", 0))
			require.Eventually(t, func() bool { return e.Stats().Requests > 0 && strings.Contains(logs.String(), "test") }, 20*time.Second, time.Millisecond)
			stop(t, e)
			for _, want := range tc.want {
				require.Contains(t, logs.String(), want)
			}
		})
	}
}
