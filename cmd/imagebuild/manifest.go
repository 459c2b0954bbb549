package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"

	"gopkg.in/yaml.v3"
)

// manifest describes an image's content and config.
type manifest struct {
	// Command is the default command of a container.
	Command []string `yaml:"command"`
	// Env is the image's environment, as NAME=VALUE.
	Env []string `yaml:"env"`
	// Labels become labels of the image and annotations of the index. ${VERSION} in a value is replaced with the version.
	Labels map[string]string `yaml:"labels"`
	// Set sets Go string variables at link time. It maps the full variable name to ${VERSION}, or to ${module:PATH}: the version
	// of the module PATH that the main module requires.
	Set map[string]string `yaml:"set"`
	// Folders has empty folders with mode 0755. The folders of files need no entry.
	Folders []string `yaml:"folders"`
	Files   []file   `yaml:"files"`
}

// file is a file of an image. Exactly one of Go, Module and Input is its source.
type file struct {
	// Path is the absolute path in the image.
	Path string `yaml:"path"`
	// Mode defaults to 0755 for programs and 0644 for other files.
	Mode os.FileMode `yaml:"mode"`
	// Go is a program to compile: its import path, or its path relative to the current folder.
	Go string `yaml:"go"`
	// In is the folder of Go's module. The default is the main module.
	In string `yaml:"in"`
	// Module is a module that the main module requires. Source is the file's path in it.
	Module string `yaml:"module"`
	Source string `yaml:"source"`
	// Input is the name of a file given on the command line.
	Input string `yaml:"input"`
	// Default is Input's file if the command line does not name one.
	Default string `yaml:"default"`
}

func readManifest(name string) (manifest, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return manifest{}, fmt.Errorf("reading the manifest: %w", err)
	}
	var m manifest
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&m); err != nil {
		return manifest{}, fmt.Errorf("reading the manifest %s: %w", name, err)
	}
	if err := m.validate(); err != nil {
		return manifest{}, fmt.Errorf("manifest %s: %w", name, err)
	}
	return m, nil
}

func (m *manifest) validate() error {
	if len(m.Files) == 0 {
		return errors.New("no files: list at least one")
	}
	seen := map[string]bool{}
	for i := range m.Files {
		f := &m.Files[i]
		if err := f.validate(); err != nil {
			return fmt.Errorf("file %d (%s): %w", i+1, f.Path, err)
		}
		if seen[f.Path] {
			return fmt.Errorf("file %d (%s): listed twice", i+1, f.Path)
		}
		seen[f.Path] = true
	}
	for _, dir := range m.Folders {
		if !cleanAbsolute(dir) {
			return fmt.Errorf("folder %q: expected a clean absolute path", dir)
		}
	}
	return nil
}

func (f *file) validate() error {
	if !cleanAbsolute(f.Path) {
		return errors.New("expected a clean absolute path")
	}
	sources := slices.DeleteFunc([]string{f.Go, f.Module, f.Input}, func(s string) bool { return s == "" })
	if len(sources) != 1 {
		return errors.New("expected exactly one of the keys go, module and input")
	}
	if (f.Module != "") != (f.Source != "") {
		return errors.New("the keys module and source must be set together")
	}
	if f.In != "" && f.Go == "" {
		return errors.New("the key in requires the key go")
	}
	if f.Default != "" && f.Input == "" {
		return errors.New("the key default requires the key input")
	}
	if f.Mode == 0 {
		f.Mode = 0o644
		if f.Go != "" {
			f.Mode = 0o755
		}
	}
	if f.Mode&^os.ModePerm != 0 {
		return fmt.Errorf("mode %#o: expected only permission bits", f.Mode)
	}
	return nil
}

func cleanAbsolute(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && p != "/"
}
