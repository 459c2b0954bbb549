// Package file is the file transport. It writes JSON lines, length-prefixed messages or pprof files.
package file

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/attempt"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/trusted"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/pprof"
)

// Sender is the file transport. It writes each request as one line, one length-prefixed message or one pprof file. Its methods
// must not be called concurrently. An exporter calls Send from only one goroutine, because a second goroutine would just wait. It
// calls Close when no Send is running.
type Sender struct {
	encode func(body []byte) ([]byte, error)
	out    output
}

// output writes encoded requests. It writes each request completely or not at all. As for a Sender, calls must not be concurrent.
type output interface {
	// open checks the target before a request is encoded.
	open() error
	// write waits for a reader until ctx ends. It waits for a disk without a time limit.
	write(ctx context.Context, record []byte) error
	close() error
}

// New returns an exporter's file transport. It opens no file. warn is called with errors that do not prevent a request from being
// written.
func New(cfg config.Exporter, warn func(error)) (*Sender, error) {
	switch info, err := os.Stat(cfg.Path); {
	case err == nil && info.IsDir() && cfg.Format != "pprof":
		return nil, fmt.Errorf("path: %s is a folder: write the path of a file in it", cfg.Path)
	case err != nil:
		if err := checkParent(filepath.Dir(cfg.Path)); err != nil {
			return nil, fmt.Errorf("path: %s cannot be created: the folder %s: %w", cfg.Path, filepath.Dir(cfg.Path), trusted.WithoutPath(err))
		}
	}
	s := &Sender{encode: Encoder(cfg.Format, cfg.OTLPVersion)}
	switch cfg.Format {
	case "pprof":
		s.out = &numberedFiles{path: cfg.Path, limit: cfg.Rotation, problem: warn}
	case "otlp-proto":
		s.out = newAppendFile(cfg.Path, cfg.Rotation, protoEnd, warn)
	default:
		s.out = newAppendFile(cfg.Path, cfg.Rotation, lineEnd, warn)
	}
	return s, nil
}

// Encoder returns a function that encodes a request as a record of the format.
func Encoder(format, otlpVersion string) func(body []byte) ([]byte, error) {
	switch format {
	case "pprof":
		return pprofRecord
	case "otlp-proto":
		return func(body []byte) ([]byte, error) { return protoRecord(body, otlpVersion) }
	}
	return jsonLine
}

// jsonLine encodes a request as ProfilesData in JSON, on one line. The Collector's file exporter writes this, and its file
// receiver reads it.
func jsonLine(body []byte) ([]byte, error) {
	line, err := wire.JSON(body)
	return append(line, '\n'), err
}

// protoRecord encodes a request as ProfilesData after its length in four bytes, big endian, as the Collector's file exporter
// does.
func protoRecord(body []byte, otlpVersion string) ([]byte, error) {
	body, err := wire.ToLayout(body, otlpVersion)
	if err != nil {
		return nil, err
	}
	if len(body) > math.MaxUint32 {
		return nil, fmt.Errorf("a request of %d bytes is too large for a length prefix of four bytes", len(body))
	}
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, len(body)+4), uint32(len(body))), body...), nil
}

// pprofRecord encodes a request as a pprof file.
func pprofRecord(body []byte) ([]byte, error) {
	data, err := wire.Decode(body)
	if err != nil {
		return nil, err
	}
	return pprof.File(data)
}

// Send makes one attempt.
func (s *Sender) Send(ctx context.Context, m wire.Message) attempt.Outcome {
	failed := func(err error) attempt.Outcome {
		return attempt.Outcome{What: err.Error(), Hint: "free disk space, or check the permissions of the folder"}
	}
	if err := s.out.open(); err != nil {
		return failed(err)
	}
	record, err := wire.Alone(ctx, m.Body, s.encode)
	if err != nil {
		return attempt.NotEncoded(err)
	}
	if err := s.out.write(ctx, record); err != nil {
		return failed(err)
	}
	return attempt.Outcome{Verdict: attempt.Accepted, Sent: int64(len(record))}
}

// Close closes the file.
func (s *Sender) Close() error { return s.out.close() }
