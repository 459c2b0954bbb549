// Package debuginfod downloads debug files by build ID from debuginfod servers (https://sourceware.org/elfutils/Debuginfod.html),
// and keeps them on disk.
//
// The administrator chooses the servers, but workloads choose the requested build IDs. So the Client limits the size and the time
// of responses. It does not request a missing file again for a while. It discards a file with another build ID.
package debuginfod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
)

// ErrNotFound means that no server has the file.
var ErrNotFound = errors.New("no debuginfod server has the file")

// Options are the settings of a Client.
type Options struct {
	// URLs lists the servers in the order in which they are tried, for example https://debuginfod.debian.net.
	URLs []string
	// Dir is the folder for the files. The Client creates it. Clients in several processes can share it, but other programs must
	// not use it.
	Dir string
	// DirBytes limits the total size of the files in Dir. The Client removes the least recently used files.
	DirBytes int64
	// FileBytes limits one file; 0 means 256 MiB.
	FileBytes int64
	// Timeout limits one request including its answer.
	Timeout time.Duration
	// Info identifies a downloaded file, whose content is untrusted. Use symbols.Info.
	Info func(ctx context.Context, f *os.File) (buildid.Info, time.Duration, error)
	// HTTP sends the requests; nil means http.DefaultTransport without cookies.
	HTTP http.RoundTripper
}

// Client downloads files. It is safe for concurrent use.
type Client struct {
	options Options
	servers []upstream
	http    http.Client

	mu      sync.Mutex
	missing map[string]time.Time // earliest time of the next request, by build ID or server URL
}

// retry is the time before a missing file is requested again. A server that did not respond is tried again after a tenth of that
// time.
const retry = time.Hour

// maxMissing limits the number of entries in Client.missing.
const maxMissing = 16 << 10

// New returns a Client, or an error for invalid settings.
func New(o Options) (*Client, error) {
	c := &Client{options: o, missing: map[string]time.Time{}}
	c.options.FileBytes = cmp.Or(o.FileBytes, 256<<20)
	for i, text := range o.URLs {
		u, err := url.Parse(text)
		if err != nil { // not wrapped: the error has the URL, which may hold a password
			return nil, fmt.Errorf("debuginfod server %d of %d: must be a URL such as https://debuginfod.example.org", i+1, len(o.URLs))
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("debuginfod server %q: must be a URL such as https://debuginfod.example.org", withoutSecrets(u))
		}
		c.servers = append(c.servers, upstream{url: strings.TrimRight(text, "/"), name: withoutSecrets(u)})
	}
	if o.Dir == "" {
		return nil, errors.New("debuginfod: no cache folder is configured")
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("debuginfod: creating the folder for the files: %w", err)
	}
	c.http = http.Client{Transport: o.HTTP, Timeout: c.options.Timeout}
	return c, c.makeRoom(0)
}

const (
	partial = "partial-"
	suffix  = ".debug"
	// leftover is the age after which the partial file of an exited process is removed. It is at least twice the Timeout.
	leftover = time.Hour
)

// buildID matches build IDs, which become part of a path and of a URL.
var buildID = regexp.MustCompile(`^[0-9a-f]{8,128}$`)

// Fetch returns the debug file of a build ID, in lower-case hexadecimal, from the folder or a server. The caller closes the file.
// The error is ErrNotFound if no server has the file, or if no server had it recently.
func (c *Client) Fetch(ctx context.Context, id string) (*os.File, error) {
	if !buildID.MatchString(id) {
		return nil, fmt.Errorf("%w: %q is not a build ID", ErrNotFound, id)
	}
	path := filepath.Join(c.options.Dir, id+suffix)
	if f, err := os.Open(path); err == nil {
		now := time.Now()
		_ = os.Chtimes(path, now, now) // if this fails, the file is only removed sooner
		return f, nil
	}
	if c.isMissing(id) {
		return nil, ErrNotFound
	}
	var problems []error
	for _, server := range c.servers {
		if c.isMissing(server.url) {
			problems = append(problems, fmt.Errorf("%s did not respond recently", server.name))
			continue
		}
		f, err := c.get(ctx, server, id, path)
		switch {
		case err == nil:
			return f, nil
		case errors.Is(err, ErrNotFound):
		default:
			problems = append(problems, err)
			if ctx.Err() != nil {
				return nil, err
			}
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	c.setMissing(id, retry)
	return nil, ErrNotFound
}

func (c *Client) get(ctx context.Context, server upstream, id, path string) (*os.File, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.url+"/buildid/"+id+"/debuginfo", nil)
	if err != nil {
		return nil, fmt.Errorf("requesting %s from %s: %w", id, server.name, withoutURL(err))
	}
	request.Header.Set("User-Agent", "ig-otel-profiles")
	request.Header.Set("X-DEBUGINFOD-MAXSIZE", strconv.FormatInt(c.options.FileBytes, 10))
	request.Header.Set("X-DEBUGINFOD-MAXTIME", strconv.FormatInt(int64(c.options.Timeout/time.Second), 10))
	answer, err := c.http.Do(request)
	if err != nil {
		if ctx.Err() == nil {
			c.setMissing(server.url, retry/10)
		}
		return nil, fmt.Errorf("requesting %s from %s: %w", id, server.name, withoutURL(err))
	}
	defer answer.Body.Close()
	switch {
	case answer.StatusCode == http.StatusNotFound || answer.StatusCode == http.StatusNotAcceptable: // 406: larger than requested
		return nil, ErrNotFound
	case answer.StatusCode != http.StatusOK:
		c.setMissing(server.url, retry/10)
		return nil, fmt.Errorf("requesting %s from %s: %s", id, server.name, answer.Status)
	case answer.ContentLength > c.options.FileBytes:
		return nil, fmt.Errorf("%w: the server's file is larger than %d bytes", ErrNotFound, c.options.FileBytes)
	}
	f, err := os.CreateTemp(c.options.Dir, partial+"*")
	if err != nil {
		return nil, fmt.Errorf("storing a debug file: %w", err)
	}
	if err := c.take(ctx, f, answer.Body, id, path); err != nil {
		f.Close()
		_ = os.Remove(f.Name()) // if this fails, makeRoom removes the file
		return nil, fmt.Errorf("downloading %s from %s: %w", id, server.name, err)
	}
	return f, nil
}

// upstream is a server. Errors show its name.
type upstream struct{ url, name string }

// withoutSecrets returns a URL without user, password and query, which may be secret.
func withoutSecrets(u *url.URL) string { return u.Scheme + "://" + u.Host + u.Path }

// withoutURL removes the URL from an error of the HTTP client, because it can contain secrets.
func withoutURL(err error) error {
	if e := (*url.Error)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// take writes an answer to f, checks the file, and renames it to path.
func (c *Client) take(ctx context.Context, f *os.File, body io.Reader, id, path string) error {
	size, err := io.Copy(f, io.LimitReader(body, c.options.FileBytes+1))
	if err != nil {
		return err
	}
	if size > c.options.FileBytes {
		c.setMissing(id, retry)
		return fmt.Errorf("%w: the server's file is larger than %d bytes", ErrNotFound, c.options.FileBytes)
	}
	if info, _, err := c.options.Info(ctx, f); err != nil || info.GNU != id {
		c.setMissing(id, retry)
		return fmt.Errorf("%w: the server sent a file with another build ID", ErrNotFound)
	}
	if err := c.makeRoom(size); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// makeRoom removes the least recently used files until size more bytes fit into DirBytes. It also removes partial files of exited
// processes. It ignores partial files of running processes.
func (c *Client) makeRoom(size int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries, err := os.ReadDir(c.options.Dir)
	if err != nil {
		return fmt.Errorf("listing the debug files: %w", err)
	}
	var files []fs.FileInfo
	sum := size
	for _, e := range entries {
		info, err := e.Info()
		switch {
		case err != nil:
		case strings.HasSuffix(e.Name(), suffix):
			files = append(files, info)
			sum += info.Size()
		case strings.HasPrefix(e.Name(), partial) && time.Since(info.ModTime()) > max(leftover, 2*c.options.Timeout):
			_ = os.Remove(filepath.Join(c.options.Dir, e.Name())) // nothing depends on success
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, f := range files {
		if sum <= c.options.DirBytes {
			break
		}
		if err := os.Remove(filepath.Join(c.options.Dir, f.Name())); err != nil {
			return fmt.Errorf("making room for debug files: %w", err)
		}
		sum -= f.Size()
	}
	if sum > c.options.DirBytes {
		return fmt.Errorf("%w: the server's file does not fit into the cache of %d bytes", ErrNotFound, c.options.DirBytes)
	}
	return nil
}

func (c *Client) isMissing(what string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.missing[what])
}

func (c *Client) setMissing(what string, long time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.missing) >= maxMissing {
		clear(c.missing)
	}
	c.missing[what] = time.Now().Add(long)
}
