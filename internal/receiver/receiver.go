// Package receiver is an OTLP profiles receiver that keeps its requests, for tests and for a demo without a backend.
//
// It listens on loopback for gRPC, and checks every request with package otlpcheck. It resolves the samples, and writes pprof
// files from them.
package receiver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/otlpcheck"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/dictionary"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // requests may be compressed with it, or with zstd, which package wire registers
	"google.golang.org/protobuf/proto"
)

// Defaults of Options.
const (
	DefaultMaxBytes       = 256 << 20
	DefaultMaxMessageSize = 4 << 20

	maxFindings  = 1000
	closeTimeout = 5 * time.Second
)

// Options configures a Receiver. The zero value listens on a free loopback port and keeps 256 MiB.
type Options struct {
	// GRPCAddr is the address of the gRPC server, 127.0.0.1:0 by default. It must be a loopback address.
	GRPCAddr string
	// MaxBytes limits the total uncompressed size of the stored requests, in bytes. Beyond it, the oldest requests are dropped and
	// counted.
	MaxBytes int64
	// MaxMessageSize is the largest accepted request, uncompressed.
	MaxMessageSize int
	// Dir is an existing folder, or empty. Each request becomes a line of profiles.jsonl (OTLP JSON) in it. Close writes one pprof
	// file with all requests there.
	Dir string
	// Fold, if set, returns the frames of a stack that the pprof file leaves out, or nil.
	Fold func(stack []Frame) []bool
	// Respond, if set, decides on the answer to a request. If it returns an error, the request is not stored. Respond is called
	// concurrently.
	Respond func(ctx context.Context, req *collectorpb.ExportProfilesServiceRequest) (*collectorpb.ExportProfilesServiceResponse, error)
}

// Stats counts the received data.
type Stats struct {
	// Requests, Samples and Bytes count the accepted data. Bytes is the uncompressed size.
	Requests, Samples, Bytes int64
	// Dropped counts the accepted requests that are no longer stored.
	Dropped int64
}

// Receiver is a running receiver. Its methods are safe for concurrent use.
type Receiver struct {
	collectorpb.UnimplementedProfilesServiceServer
	opts   Options
	server *grpc.Server
	addr   string
	served chan error // gets the server's error when it has stopped
	closed atomic.Bool

	mu       sync.Mutex
	requests []keptRequest
	kept     int64
	stats    Stats
	findings []error
	lines    *os.File
	writeErr error
}

type keptRequest struct {
	req  *collectorpb.ExportProfilesServiceRequest
	size int64
}

// Start starts a receiver. The caller must close it.
func Start(opts Options) (*Receiver, error) {
	opts.MaxBytes, opts.MaxMessageSize = cmp.Or(opts.MaxBytes, DefaultMaxBytes), cmp.Or(opts.MaxMessageSize, DefaultMaxMessageSize)
	listener, err := listenLoopback(cmp.Or(opts.GRPCAddr, "127.0.0.1:0"))
	if err != nil {
		return nil, fmt.Errorf("starting the receiver: %w", err)
	}
	r := &Receiver{opts: opts, server: grpc.NewServer(grpc.MaxRecvMsgSize(opts.MaxMessageSize)), addr: listener.Addr().String(), served: make(chan error, 1)}
	if opts.Dir != "" {
		r.lines, err = os.OpenFile(filepath.Join(opts.Dir, "profiles.jsonl"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("opening the receiver's file: %w", err), listener.Close())
		}
	}
	collectorpb.RegisterProfilesServiceServer(r.server, r)
	go func() { r.served <- r.server.Serve(listener) }()
	return r, nil
}

func listenLoopback(addr string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	if ip := l.Addr().(*net.TCPAddr).IP; !ip.IsLoopback() {
		return nil, errors.Join(fmt.Errorf("%s is not a loopback address: use 127.0.0.1", addr), l.Close())
	}
	return l, nil
}

// Addr returns the receiver's address, host:port.
func (r *Receiver) Addr() string { return r.addr }

// Export implements the profiles service. It calls Respond, then checks, counts, writes and stores the request.
func (r *Receiver) Export(ctx context.Context, req *collectorpb.ExportProfilesServiceRequest) (*collectorpb.ExportProfilesServiceResponse, error) {
	resp := &collectorpb.ExportProfilesServiceResponse{}
	if r.opts.Respond != nil {
		got, err := r.opts.Respond(ctx, req)
		if err != nil {
			return nil, err
		}
		if got != nil {
			resp = got
		}
	}
	findings := otlpcheck.Check(req)
	size := int64(proto.Size(req))
	samples := int64(0)
	for p := range dictionary.Profiles(req) {
		samples += int64(len(p.GetSamples()))
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.findings = append(r.findings, findings[:min(len(findings), maxFindings-len(r.findings))]...)
	r.stats.Requests++
	r.stats.Samples += samples
	r.stats.Bytes += size
	r.requests = append(r.requests, keptRequest{req, size})
	r.kept += size
	for r.kept > r.opts.MaxBytes {
		r.kept -= r.requests[0].size
		r.requests[0] = keptRequest{}
		r.requests = r.requests[1:]
		r.stats.Dropped++
	}
	if r.lines != nil && r.writeErr == nil {
		r.writeErr = writeLine(r.lines, req)
	}
	return resp, nil
}

// writeLine appends a request to a file. If there is no room for the whole request, it leaves the file as it was.
func writeLine(f *os.File, req *collectorpb.ExportProfilesServiceRequest) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if err := WriteJSONLine(f, req); err != nil {
		return errors.Join(err, f.Truncate(end))
	}
	return nil
}

// Requests returns the stored requests, oldest first. Callers must not change them.
func (r *Receiver) Requests() []*collectorpb.ExportProfilesServiceRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	reqs := make([]*collectorpb.ExportProfilesServiceRequest, 0, len(r.requests))
	for _, k := range r.requests {
		reqs = append(reqs, k.req)
	}
	return reqs
}

// Samples returns the resolved samples of all stored requests. A repeated request counts once.
func (r *Receiver) Samples() []Sample { return ResolveAll(once(r.Requests())) }

// NewestSamples is like Samples, but returns only the newest samples of each state: see Newest.
func (r *Receiver) NewestSamples() []Sample { return ResolveAll(Newest(r.Requests())) }

// Findings returns the first 1,000 broken rules.
func (r *Receiver) Findings() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]error(nil), r.findings...)
}

// Stats returns the received data so far.
func (r *Receiver) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// Close stops the server, waits up to 5 seconds for requests in progress, and writes the pprof files if Options.Dir is set.
// Further calls do nothing. Received requests can still be read.
func (r *Receiver) Close() error {
	if r.closed.Swap(true) {
		return nil
	}
	stop := time.AfterFunc(closeTimeout, r.server.Stop)
	r.server.GracefulStop()
	stop.Stop()
	var errs []error
	if err := <-r.served; !errors.Is(err, grpc.ErrServerStopped) {
		errs = append(errs, err)
	}
	if r.lines != nil {
		r.mu.Lock()
		errs = append(errs, r.writeErr, r.lines.Close())
		r.mu.Unlock()
		err := WritePprof(r.opts.Dir, r.Requests(), r.opts.Fold)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing the receiver: %w", err)
	}
	return nil
}
