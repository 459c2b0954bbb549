package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// Names of files in a result's folder.
const (
	runFile     = "run.json"
	samplesFile = "profiles.jsonl"
	pageFile    = "flamegraph.html"
)

// runInfo says how a result came about.
type runInfo struct {
	Target  string    `json:"target"`
	Gadget  string    `json:"gadget"`
	Started time.Time `json:"started"`
	// Seconds is how long was sampled.
	Seconds float64 `json:"seconds"`
}

func (r runInfo) write(dir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", runFile, err)
	}
	if err := os.WriteFile(filepath.Join(dir, runFile), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing how the result came about: %w", err)
	}
	return nil
}

// load reads a result: its folder, or a file of OTLP JSON alone, as the Collector's file exporter writes
// them. For a file the time is that from its first to its last profile.
func load(path string) (runInfo, []receiver.Sample, error) {
	file, info := path, runInfo{}
	stat, err := os.Stat(path)
	if err != nil {
		return info, nil, fmt.Errorf("reading a result: %w", err)
	}
	if stat.IsDir() {
		file = filepath.Join(path, samplesFile)
		text, err := os.ReadFile(filepath.Join(path, runFile))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return info, nil, fmt.Errorf("reading a result: %w", err)
		default:
			if err := json.Unmarshal(text, &info); err != nil {
				return info, nil, fmt.Errorf("reading %s: %w", filepath.Join(path, runFile), err)
			}
		}
	}
	f, err := os.Open(file)
	if err != nil {
		return info, nil, fmt.Errorf("reading a result: %w", err)
	}
	defer f.Close()
	requests, err := receiver.ReadJSONLines(f)
	if err != nil {
		return info, nil, fmt.Errorf("reading %s: %w", file, err)
	}
	var samples []receiver.Sample
	for _, req := range receiver.Newest(requests) {
		samples = append(samples, receiver.Resolve(req)...)
	}
	if len(samples) == 0 {
		return info, nil, fmt.Errorf("%s has no samples", file)
	}
	if info.Seconds <= 0 {
		start, end := samples[0].Start, samples[0].End
		for _, s := range samples {
			if s.Start.Before(start) {
				start = s.Start
			}
			if s.End.After(end) {
				end = s.End
			}
		}
		info.Seconds = end.Sub(start).Seconds()
	}
	if info.Target == "" {
		info.Target = filepath.Base(path)
	}
	if info.Seconds <= 0 {
		return info, nil, fmt.Errorf("%s does not say how long it was sampled: %s is missing, and its profiles have no duration", path, runFile)
	}
	return info, samples, nil
}

// ownGroup gives a command a process group of its own.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
