package export

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/pprof"
)

// fileSender is the file transport: each request becomes one line, one length-prefixed message or
// one pprof file. An exporter has one goroutine that sends to it: a second one would only wait for the first.
type fileSender struct {
	path   string
	encode func(body []byte) ([]byte, error)
	out    fileWriter
}

// fileWriter puts one encoded request where it belongs, as a whole or not at all.
type fileWriter interface {
	// open finds out whether there is something to write to, before a request is encoded.
	open() error
	// write waits for a reader until ctx ends, and for a disk as long as that takes.
	write(ctx context.Context, record []byte) error
	close() error
}

func newFileSender(cfg config.Exporter, log *eventLog) (*fileSender, error) {
	s := &fileSender{path: cfg.Path}
	problem := func(err error) { log.warnf("file", "%v", err) }
	switch info, err := os.Stat(cfg.Path); {
	case err == nil && info.IsDir() && cfg.Format != "pprof":
		return nil, fmt.Errorf("path: %s is a folder: write the path of a file in it", cfg.Path)
	case err != nil:
		if err := checkParent(filepath.Dir(cfg.Path)); err != nil {
			return nil, fmt.Errorf("path: %s cannot be made: the folder %s: %w", cfg.Path, filepath.Dir(cfg.Path), withoutPath(err))
		}
	}
	switch cfg.Format {
	case "otlp-proto":
		s.encode = func(body []byte) ([]byte, error) { return protoRecord(body, cfg.OTLPVersion) }
		s.out = newAppendFile(cfg.Path, cfg.Rotation, protoEnd, problem)
	case "pprof":
		s.encode = pprofRecord
		s.out = newNumberedFiles(cfg.Path, cfg.Rotation, problem)
	default:
		s.encode = jsonLine
		s.out = newAppendFile(cfg.Path, cfg.Rotation, lineEnd, problem)
	}
	return s, nil
}

// jsonLine is a ProfilesData in JSON on a line of its own, as the OpenTelemetry Collector's file
// exporter writes and its file receiver reads.
func jsonLine(body []byte) ([]byte, error) {
	line, err := requestJSON(body)
	return append(line, '\n'), err
}

// protoRecord is a ProfilesData after its length in four bytes, big endian, as the Collector's
// file exporter writes.
func protoRecord(body []byte, otlpVersion string) ([]byte, error) {
	body, err := toLayout(body, otlpVersion)
	if err != nil {
		return nil, err
	}
	if len(body) > math.MaxUint32 {
		return nil, fmt.Errorf("a request of %d bytes has no length in four bytes", len(body))
	}
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, len(body)+4), uint32(len(body))), body...), nil
}

// pprofRecord is a request as a pprof file of its own.
func pprofRecord(body []byte) ([]byte, error) {
	data, err := decodeRequest(body)
	if err != nil {
		return nil, err
	}
	return pprof.File(data)
}

func (s *fileSender) send(ctx context.Context, body []byte) outcome {
	failed := func(err error) outcome {
		return outcome{verdict: retryable, what: err.Error(), hint: "make room, or check the rights of the folder"}
	}
	if err := s.out.open(); err != nil {
		return failed(err)
	}
	record, err := encoded(ctx, body, s.encode)
	if err != nil {
		return notEncoded(err)
	}
	if err := s.out.write(ctx, record); err != nil {
		return failed(err)
	}
	return outcome{verdict: accepted, sent: int64(len(record))}
}

func (s *fileSender) close() error { return s.out.close() }
