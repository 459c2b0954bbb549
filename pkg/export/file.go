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
// one pprof file. An exporter has one goroutine that sends to it: a second one would only hold a second
// request in its decoded form, which is many times as large.
type fileSender struct {
	path   string
	layout string
	encode func(body []byte, layout string) ([]byte, error)
	out    fileWriter
}

// fileWriter puts one encoded request where it belongs, as a whole or not at all.
type fileWriter interface {
	// open finds out whether there is something to write to, before a request is encoded.
	open() error
	write(record []byte) error
	close() error
}

// encoders bounds the memory that all file exporters of the process take for requests in their decoded form.
var encoders = make(chan struct{}, 1)

func newFileSender(cfg config.Exporter, log *eventLog) (*fileSender, error) {
	s := &fileSender{path: cfg.Path, layout: cfg.OTLPVersion}
	problem := func(err error) { log.warnf("rotation", "%v", err) }
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
		s.encode = protoRecord
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

// pprofRecord is a request as a pprof file of its own.
func pprofRecord(body []byte, layout string) ([]byte, error) {
	data, err := decodeRequest(body, layout)
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
	select {
	case encoders <- struct{}{}:
		defer func() { <-encoders }()
	case <-ctx.Done():
		return outcome{verdict: retryable, what: "another exporter writes a file"}
	}
	record, err := s.encode(body, s.layout)
	if err != nil {
		return outcome{verdict: rejected, what: err.Error()}
	}
	if err := s.out.write(record); err != nil {
		return failed(err)
	}
	return outcome{verdict: accepted, sent: int64(len(record))}
}

func (s *fileSender) close() error { return s.out.close() }
