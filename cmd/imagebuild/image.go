package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// created is the time in image configs and layers. A real time would make every build differ.
var created = time.Unix(0, 0).UTC()

// built has an image for each architecture, and their index.
type built struct {
	byArch map[string]v1.Image
	index  v1.ImageIndex
}

func makeImages(m manifest, version string, contents map[string][]entry) (built, error) {
	labels := make(map[string]string, len(m.Labels))
	for k, v := range m.Labels {
		labels[k] = strings.ReplaceAll(v, "${VERSION}", version)
	}
	b := built{byArch: map[string]v1.Image{}, index: mutate.IndexMediaType(empty.Index, types.OCIImageIndex)}
	for _, arch := range slices.Sorted(maps.Keys(contents)) {
		img, err := makeImage(m, labels, arch, contents[arch])
		if err != nil {
			return built{}, fmt.Errorf("building the image for %s: %w", arch, err)
		}
		b.byArch[arch] = img
		b.index = mutate.AppendManifests(b.index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	if len(labels) > 0 {
		b.index = mutate.Annotations(b.index, labels).(v1.ImageIndex)
	}
	return b, nil
}

func makeImage(m manifest, labels map[string]string, arch string, entries []entry) (v1.Image, error) {
	content, err := tarOf(entries)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{
		Created: v1.Time{Time: created}, CreatedBy: "imagebuild",
	}})
	if err != nil {
		return nil, err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Created = "linux", arch, v1.Time{Time: created}
	cfg.Config = v1.Config{Cmd: m.Command, Env: m.Env, Labels: labels}
	return mutate.ConfigFile(img, cfg)
}

// tarOf packs the entries into a tar file, owned by root, with the time created, in the given order.
func tarOf(entries []entry) ([]byte, error) {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Name: strings.TrimPrefix(e.path, "/"), Mode: int64(e.mode.Perm()), ModTime: created, Format: tar.FormatPAX}
		if e.mode.IsDir() {
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
			if err := tw.WriteHeader(h); err != nil {
				return nil, fmt.Errorf("packing %s: %w", e.path, err)
			}
			continue
		}
		data, err := os.ReadFile(e.source)
		if err != nil {
			return nil, fmt.Errorf("packing %s: %w", e.path, err)
		}
		h.Typeflag, h.Size = tar.TypeReg, int64(len(data))
		if err := tw.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("packing %s: %w", e.path, err)
		}
		if _, err := tw.Write(data); err != nil {
			return nil, fmt.Errorf("packing %s: %w", e.path, err)
		}
	}
	if err := tw.Close(); err != nil {
		return nil, fmt.Errorf("packing the image: %w", err)
	}
	return buf.Bytes(), nil
}

// deliver writes the images to all targets of the options.
func deliver(ctx context.Context, opts options, b built) error {
	if opts.layout != "" {
		if err := writeLayout(opts.layout, opts.ref, b.index); err != nil {
			return fmt.Errorf("writing the image layout %s: %w", opts.layout, err)
		}
	}
	if opts.archive != "" {
		tag, err := name.NewTag(opts.ref)
		if err != nil {
			return fmt.Errorf("flag -ref: %w", err)
		}
		if err := tarball.WriteToFile(opts.archive, tag, b.byArch[opts.arches[0]]); err != nil {
			return fmt.Errorf("writing the archive %s: %w", opts.archive, err)
		}
	}
	if !opts.push {
		return nil
	}
	var nameOpts []name.Option
	if opts.insecure {
		nameOpts = append(nameOpts, name.Insecure)
	}
	ref, err := name.ParseReference(opts.ref, nameOpts...)
	if err != nil {
		return fmt.Errorf("flag -ref: %w", err)
	}
	digest, err := b.index.Digest()
	if err != nil {
		return fmt.Errorf("pushing %s: %w", ref, err)
	}
	err = remote.WriteIndex(ref, b.index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return fmt.Errorf("pushing %s: %w", ref, err)
	}
	fmt.Printf("%s@%s\n", ref.Context(), digest)
	return nil
}

// layoutEntries lists the entries of an image layout (https://github.com/opencontainers/image-spec/blob/main/image-layout.md).
var layoutEntries = []string{"oci-layout", "index.json", "blobs"}

// writeLayout replaces the content of the image layout in dir with the index. It returns an error if dir has other content.
func writeLayout(dir, ref string, index v1.ImageIndex) error {
	present, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(present) > 0 {
		if _, err := layout.FromPath(dir); err != nil {
			return fmt.Errorf("the folder is not an image layout: %w", err)
		}
		if _, err := os.Lstat(filepath.Join(dir, "oci-layout")); err != nil {
			return fmt.Errorf("the folder is not an image layout: %w", err)
		}
		for _, e := range present {
			if !slices.Contains(layoutEntries, e.Name()) {
				return fmt.Errorf("the folder also contains %s: remove it, or choose another folder", e.Name())
			}
		}
		for _, name := range layoutEntries {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	var opts []layout.Option
	if ref != "" {
		opts = append(opts, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": ref}))
	}
	return path.AppendIndex(index, opts...)
}
