package main

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
)

// install holds the paths of ig and of the gadgets.
type install struct{ ig, gadgets string }

// ownGadgets maps short names to this project's gadgets.
var ownGadgets = map[string]string{
	"alloc":     "profile_alloc",
	"cpu":       "profile_cpu",
	"lock":      "profile_lock",
	"offcpu":    "profile_offcpu",
	"pagefault": "profile_pagefault",
}

// gadget is the gadget that ig runs.
type gadget struct {
	image string
	// archive is the file that contains the image. If it is empty, ig finds the image itself.
	archive string
	// digest is the image's digest in the archive.
	digest string
	// name is the image's name without registry and tag.
	name string
}

// find derives missing paths from this program's path. In a build, build/bin is next to build/gadgets. If the package is
// installed, programs are in /usr/bin or /usr/lib/ig-otel-profiles, and gadgets in /usr/share/ig-otel-profiles/gadgets.
func (i *install) find() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	bin := filepath.Dir(self)
	if i.ig == "" {
		i.ig = filepath.Join(bin, "ig")
	}
	if _, err := os.Stat(i.ig); err != nil {
		return fmt.Errorf("finding the ig command: %w: build it with \"make build\", or set its path with --ig", err)
	}
	if i.gadgets == "" {
		i.gadgets = gadgetsOf(bin)
	}
	return nil
}

// gadgetsOf returns the folder of the gadgets' images, given this program's folder. It returns "" if the folder does not exist.
func gadgetsOf(bin string) string {
	for _, dir := range []string{"../gadgets", "../share/ig-otel-profiles/gadgets", "../../share/ig-otel-profiles/gadgets"} {
		if dir = filepath.Join(bin, dir); exists(dir) {
			return dir
		}
	}
	return ""
}

// choose returns the requested gadget. The default is the gadget for CPU time.
func (i *install) choose(asked string) (gadget, error) {
	if asked == "" {
		asked = "cpu"
	}
	if name, own := ownGadgets[asked]; own {
		return i.own(name)
	}
	image := asked[strings.LastIndexByte(asked, '/')+1:]
	image, _, _ = strings.Cut(image, "@")
	image, _, _ = strings.Cut(image, ":")
	return gadget{image: asked, name: image}, nil
}

func (i *install) own(name string) (gadget, error) {
	file := filepath.Join(i.gadgets, name+".tar")
	if i.gadgets == "" || !exists(file) {
		return gadget{}, fmt.Errorf("there is no image %s.tar in %q: build it with \"make gadgets\", or set its folder with --gadgets", name, i.gadgets)
	}
	image, digest, err := readArchive(file)
	if err != nil {
		return gadget{}, fmt.Errorf("reading the gadget's image %s: %w", file, err)
	}
	return gadget{image: image, archive: file, digest: digest, name: name}, nil
}

// load imports the gadget's image, unless ig already has it. If it replaces an image of another build, it prints a message,
// because this affects later runs.
func (i *install) load(ctx context.Context, g gadget, out io.Writer) error {
	if g.archive == "" {
		return nil
	}
	unlock, err := lockImages()
	if err != nil {
		return err
	}
	defer unlock()
	have, err := i.knownDigest(ctx, g.image)
	if err != nil {
		return err
	}
	if have == g.digest {
		return nil
	}
	if have != "" {
		fmt.Fprintf(out, "ig's image %s (%.19s…) was from another build: replaced with %s (%.19s…)\n", g.image, have, g.archive, g.digest)
	}
	return igrun.Import(ctx, i.ig, g.archive)
}

// imagesLock is locked while a process changes ig's images, because ig refuses to import an image that another process is
// importing.
const imagesLock = "/run/ig-otel-profiles-images.lock"

// lockImages waits until no other run of this program imports an image.
func lockImages() (unlock func(), err error) {
	f, err := os.OpenFile(imagesLock, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return nil, fmt.Errorf("locking ig's images: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// knownDigest returns ig's digest for one of this project's images, or "" if ig does not have it.
func (i *install) knownDigest(ctx context.Context, name string) (string, error) {
	output, err := exec.CommandContext(ctx, i.ig, "image", "list", "--no-trunc", "--output", "json").Output()
	if err != nil {
		return "", fmt.Errorf("listing ig's images: %w", err)
	}
	var images []struct{ Repository, Tag, Digest string }
	if err := json.Unmarshal(output, &images); err != nil {
		return "", fmt.Errorf("reading the list of ig's images: %w", err)
	}
	for _, image := range images {
		if image.Repository+":"+image.Tag == name {
			return image.Digest, nil
		}
	}
	return "", nil
}

const (
	// maxIndex limits the size of an image's index.
	maxIndex = 1 << 20
	// igRegistry is the prefix that ig adds to names without a registry, and omits in its output.
	igRegistry = "ghcr.io/inspektor-gadget/gadget/"
	refName    = "org.opencontainers.image.ref.name"
)

// readArchive returns the name and the digest of the image in an OCI archive.
func readArchive(file string) (name, digest string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	for archive := tar.NewReader(f); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return "", "", errors.New("no index.json, so it is not an image archive")
		}
		if err != nil {
			return "", "", err
		}
		if filepath.Clean(header.Name) != "index.json" {
			continue
		}
		var index struct {
			Manifests []struct {
				Digest      string            `json:"digest"`
				Annotations map[string]string `json:"annotations"`
			} `json:"manifests"`
		}
		if err := json.NewDecoder(io.LimitReader(archive, maxIndex)).Decode(&index); err != nil {
			return "", "", fmt.Errorf("index.json: %w", err)
		}
		for _, m := range index.Manifests {
			if name := m.Annotations[refName]; name != "" {
				return strings.TrimPrefix(name, igRegistry), m.Digest, nil
			}
		}
		return "", "", errors.New("index.json names no image")
	}
}
