package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

const openUsage = `profile open serves a result on localhost for a browser on this machine, until you interrupt it.
From another machine: ssh -L 8080:localhost:8080 MACHINE, and open http://localhost:8080/ there.

  profile open profile-1234-20261121-173000
  profile open profiles.jsonl     # or any other input of profile diff: OTLP, pprof, folders of these

`

// runOpen serves the folder of a result by HTTP.
func runOpen(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := newFlags("open", openUsage)
	port := flags.Int("port", 8080, "`port` on localhost; 0 for any free port")
	if err := parse(flags, args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return fmt.Errorf("open takes one result, not %d", flags.NArg())
	}
	dir := flags.Arg(0)
	if !exists(filepath.Join(dir, pageFile)) {
		drawn, err := draw(dir)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(drawn)) }()
		dir = drawn
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		return fmt.Errorf("listening on localhost: %w: choose another port with --port", err)
	}
	server := &http.Server{Handler: serveResult(dir), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // ends the server
	defer stop()
	fmt.Fprintf(out, "http://localhost:%d/ shows %s until Ctrl-C\n", listener.Addr().(*net.TCPAddr).Port, flags.Arg(0))
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", flags.Arg(0), err)
	}
	return nil
}

// draw writes the pages of an input to a new folder, which the caller removes.
func draw(input string) (dir string, err error) {
	info, samples, err := load(input)
	if err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp("", "profile-open-"); err != nil {
		return "", fmt.Errorf("creating a folder for the flame graph: %w", err)
	}
	types, byType := byWeight(samples)
	for i, t := range types {
		if err := writePage(filepath.Join(dir, pageName(i)), pageOf(t, byType[t], info, false)); err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
	}
	return dir, nil
}

// serveResult serves only a result's files. It rejects requests from other sites' pages, even if a site's name resolves to this
// machine.
func serveResult(dir string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if host != "localhost" && host != "127.0.0.1" {
			http.Error(w, "only requests to localhost are answered", http.StatusForbidden)
			return
		}
		name := r.URL.Path[1:]
		if name == "" {
			name = pageFile
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead || !resultFiles.MatchString(name) {
			http.NotFound(w, r)
			return
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			http.Error(w, "the result was removed", http.StatusNotFound)
			return
		}
		defer root.Close()
		file, err := root.Open(name)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		defer file.Close()
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		if filepath.Ext(name) != ".html" {
			w.Header().Set("Content-Disposition", "attachment")
		}
		http.ServeContent(w, r, name, time.Time{}, file)
	})
}
