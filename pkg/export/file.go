package export

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// fileSender is the file transport: each request becomes one line, one length-prefixed message or
// one pprof file.
type fileSender struct {
	path   string
	layout string
	encode func(body []byte, layout string) ([]byte, error)
	out    fileWriter
}

// fileWriter puts one encoded request where it belongs, as a whole or not at all.
type fileWriter interface {
	write(record []byte) error
	close() error
}

func newFileSender(cfg config.Exporter, log *eventLog) (*fileSender, error) {
	if cfg.Path == "" {
		return nil, fmt.Errorf("path: not set: name a file")
	}
	s := &fileSender{path: cfg.Path, layout: cfg.OTLPVersion}
	problem := func(err error) { log.warnf("rotation", "%v", err) }
	if err := checkParent(filepath.Dir(cfg.Path)); err != nil {
		return nil, fmt.Errorf("path: %w", err)
	}
	switch cfg.Format {
	case "otlp-json", "":
		s.encode = jsonLine
		s.out = newRotatingFile(cfg.Path, cfg.Rotation, problem)
	case "otlp-proto":
		s.encode = protoRecord
		s.out = newRotatingFile(cfg.Path, cfg.Rotation, problem)
	case "pprof":
		s.encode = pprofFile
		s.out = newNumberedFiles(cfg.Path, cfg.Rotation, problem)
	default:
		return nil, fmt.Errorf("format: got %q: take otlp-json, otlp-proto or pprof", cfg.Format)
	}
	return s, nil
}

// jsonLine is a ProfilesData in JSON on a line of its own, as the OpenTelemetry Collector's file
// exporter writes and its file receiver reads.
func jsonLine(body []byte, layout string) ([]byte, error) {
	line, err := requestJSON(body, layout)
	return append(line, '\n'), err
}

// protoRecord is a ProfilesData after its length in four bytes, big endian, as the Collector's
// file exporter writes.
func protoRecord(body []byte, _ string) ([]byte, error) {
	if len(body) > math.MaxUint32 {
		return nil, fmt.Errorf("a request of %d bytes has no length in four bytes", len(body))
	}
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, len(body)+4), uint32(len(body))), body...), nil
}

func (s *fileSender) send(_ context.Context, body []byte) outcome {
	record, err := s.encode(body, s.layout)
	if err != nil {
		return outcome{verdict: rejected, what: err.Error()}
	}
	if err := s.out.write(record); err != nil {
		return outcome{verdict: retryable, what: err.Error(), hint: "make room, or check the rights of the folder"}
	}
	return outcome{}
}

func (s *fileSender) close() error { return s.out.close() }
