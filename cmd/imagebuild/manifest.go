package main

import (
	"bytes"
	"fmt"
	"os"
	"path"

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
	for i := range m.Files {
		f := &m.Files[i]
		f.Path = inside(f.Path)
		switch {
		case f.Mode != 0:
		case f.Go != "":
			f.Mode = 0o755
		default:
			f.Mode = 0o644
		}
	}
	for i, dir := range m.Folders {
		m.Folders[i] = inside(dir)
	}
	return m, nil
}

// inside returns a path in the image that cannot lead out of it.
func inside(p string) string { return path.Clean("/" + p) }
