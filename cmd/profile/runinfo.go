package main

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"time"
)

// These are the names of the files in a result's folder.
const (
	runFile     = "run.json"
	samplesFile = "profiles.jsonl"
	pageFile    = "flamegraph.html"
	pictureFile = "flamegraph.svg" // of the demo's programs
)

// runInfo describes the run of a result.
type runInfo struct {
	Target  string    `json:"target"`
	Gadget  string    `json:"gadget"`
	Started time.Time `json:"started"`
	// Seconds is the length of the run.
	Seconds float64 `json:"seconds"`
}

func (r runInfo) write(dir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", runFile, err)
	}
	err = create(filepath.Join(dir, runFile), func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
	if err != nil {
		return fmt.Errorf("writing the description of the run: %w", err)
	}
	return nil
}
