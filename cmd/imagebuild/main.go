// imagebuild builds container images from a manifest, for several architectures, without a container daemon.
//
//	imagebuild -manifest cmd/gadgettracermanager/image.yaml -layout build/image
//
// It compiles the Go programs in the manifest and adds the files. It writes an OCI image layout, an archive for one architecture,
// or a folder, or pushes to a registry. The Dockerfile next to a manifest runs it with -rootfs, so both images have the same
// files.
//
// The result depends only on the sources, the Go release and the files given with -file. It contains no current time, user name
// or path of the machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("imagebuild: ")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		stop()
		log.Fatal(err)
	}
}

type options struct {
	manifest string
	arches   []string
	version  string
	ref      string
	files    map[string]string

	layout   string
	archive  string
	rootfs   string
	push     bool
	insecure bool
	list     bool
}

func parse(args []string) (options, error) {
	opts := options{files: map[string]string{}}
	flags := flag.NewFlagSet("imagebuild", flag.ContinueOnError)
	flags.StringVar(&opts.manifest, "manifest", "", "`file` that lists the image's content")
	arches := flags.String("arch", runtime.GOARCH, "comma-separated `architectures`, such as amd64,arm64")
	flags.StringVar(&opts.version, "version", "devel", "`version` for programs and labels")
	flags.StringVar(&opts.ref, "ref", "", "`name:tag` of the image")
	flags.StringVar(&opts.layout, "layout", "", "write an OCI image layout with all architectures into this `folder`")
	flags.StringVar(&opts.archive, "archive", "", "write a docker archive of one architecture into this `file`")
	flags.StringVar(&opts.rootfs, "rootfs", "", "write the files of one architecture to this `folder`")
	flags.BoolVar(&opts.push, "push", false, "push the image with all architectures to the registry that -ref names; prints name@digest")
	flags.BoolVar(&opts.insecure, "insecure", false, "push over plain HTTP")
	flags.BoolVar(&opts.list, "list", false, "print path, mode, size and digest of each file in the image for the first architecture")
	flags.Func("file", "`NAME=PATH`: the file PATH for the manifest's \"input: NAME\"; can be repeated", func(s string) error {
		name, path, ok := strings.Cut(s, "=")
		if !ok || name == "" || path == "" {
			return errors.New("expected NAME=PATH")
		}
		opts.files[name] = path
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	opts.arches = strings.Split(*arches, ",")
	switch {
	case flags.NArg() > 0:
		return options{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case opts.manifest == "":
		return options{}, errors.New("flag -manifest is required")
	case (opts.archive != "" || opts.rootfs != "") && len(opts.arches) != 1:
		return options{}, errors.New("-archive and -rootfs take only one architecture: choose it with -arch")
	case (opts.archive != "" || opts.push) && opts.ref == "":
		return options{}, errors.New("-archive and -push need the image's name: set -ref")
	case opts.layout == "" && opts.archive == "" && opts.rootfs == "" && !opts.push && !opts.list:
		return options{}, errors.New("nothing to do: set -layout, -archive, -rootfs, -push or -list")
	}
	return opts, nil
}

func run(ctx context.Context, args []string) error {
	opts, err := parse(args)
	if err != nil {
		return err
	}
	m, err := readManifest(opts.manifest)
	if err != nil {
		return err
	}
	if unused := unusedInputs(m, opts.files); len(unused) > 0 {
		return fmt.Errorf("flag -file: %s has no input %s", opts.manifest, strings.Join(unused, ", "))
	}

	scratch, err := os.MkdirTemp("", "imagebuild")
	if err != nil {
		return fmt.Errorf("creating a temporary folder: %w", err)
	}
	defer os.RemoveAll(scratch)
	b := builder{manifest: m, version: opts.version, inputs: opts.files, scratch: scratch}
	contents := make(map[string][]entry, len(opts.arches))
	for _, arch := range opts.arches {
		entries, err := b.gather(ctx, arch)
		if err != nil {
			return err
		}
		contents[arch] = entries
	}

	first := contents[opts.arches[0]]
	if opts.list {
		if err := list(os.Stdout, first); err != nil {
			return err
		}
	}
	if opts.rootfs != "" {
		if err := writeRootfs(opts.rootfs, first); err != nil {
			return err
		}
	}
	if opts.layout == "" && opts.archive == "" && !opts.push {
		return nil
	}
	images, err := makeImages(m, opts.version, contents)
	if err != nil {
		return err
	}
	return deliver(ctx, opts, images)
}

func unusedInputs(m manifest, files map[string]string) []string {
	unused := maps.Clone(files)
	for _, f := range m.Files {
		delete(unused, f.Input)
	}
	return slices.Sorted(maps.Keys(unused))
}
