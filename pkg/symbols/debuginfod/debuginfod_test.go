package debuginfod

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/parse"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// file returns an ELF file of size bytes with a build ID.
func file(t *testing.T, id string, size int) []byte {
	t.Helper()
	raw, err := hex.DecodeString(id)
	require.NoError(t, err)
	note := binary.LittleEndian.AppendUint32(nil, 4)
	note = binary.LittleEndian.AppendUint32(note, uint32(len(raw)))
	note = binary.LittleEndian.AppendUint32(note, 3)
	note = append(append(note, "GNU\x00"...), raw...)
	var b bytes.Buffer
	require.NoError(t, binary.Write(&b, binary.LittleEndian, &elf.Header64{Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Phoff: 64, Phentsize: 56, Phnum: 1}))
	require.NoError(t, binary.Write(&b, binary.LittleEndian, &elf.Prog64{Type: uint32(elf.PT_NOTE), Off: 120, Filesz: uint64(len(note))}))
	b.Write(note)
	return append(b.Bytes(), make([]byte, size-b.Len())...)
}

const (
	one   = "00112233445566778899aabbccddeeff00112233"
	two   = "10112233445566778899aabbccddeeff00112233"
	three = "20112233445566778899aabbccddeeff00112233"
)

type server struct {
	*httptest.Server
	mu     sync.Mutex
	list   []string
	answer func(w http.ResponseWriter, id string)
}

func serve(t *testing.T, answer func(w http.ResponseWriter, id string)) *server {
	s := &server{answer: answer}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, ok := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/buildid/"), "/debuginfo")
		if !ok || r.Method != http.MethodGet {
			http.NotFound(w, r)
			return
		}
		s.mu.Lock()
		s.list = append(s.list, id)
		s.mu.Unlock()
		s.answer(w, id)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list)
}

func client(t *testing.T, o Options) *Client {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	o.DirBytes, o.Timeout = cmp.Or(o.DirBytes, 1<<30), cmp.Or(o.Timeout, time.Minute)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	o.HTTP = transport
	o.Info = func(ctx context.Context, f *os.File) (buildid.Info, time.Duration, error) {
		return symbols.Info(ctx, parse.Here{}, f)
	}
	c, err := New(o)
	require.NoError(t, err)
	return c
}

func TestFetch(t *testing.T) {
	want := file(t, one, 1000)
	empty := serve(t, func(w http.ResponseWriter, _ string) { w.WriteHeader(http.StatusNotFound) })
	full := serve(t, func(w http.ResponseWriter, id string) {
		if id != one {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write(want)
	})
	dir := t.TempDir()
	c := client(t, Options{URLs: []string{empty.URL, full.URL + "/"}, Dir: dir})
	for range 3 {
		f, err := c.Fetch(t.Context(), one)
		require.NoError(t, err)
		got := make([]byte, len(want)+1)
		n, _ := f.ReadAt(got, 0)
		require.Equal(t, want, got[:n])
		f.Close()
		_, err = c.Fetch(t.Context(), two)
		require.ErrorIs(t, err, ErrNotFound)
	}
	require.Equal(t, []string{one, two}, full.asked(), "each once: the rest is known")
	require.Equal(t, []string{one, two}, empty.asked())
	// Another Client must find the files in the folder.
	f, err := client(t, Options{URLs: []string{empty.URL}, Dir: dir}).Fetch(t.Context(), one)
	require.NoError(t, err)
	f.Close()
}

// Text that cannot be a build ID must become neither a path nor a request.
func TestNoBuildID(t *testing.T) {
	s := serve(t, func(http.ResponseWriter, string) {})
	c := client(t, Options{URLs: []string{s.URL}})
	for _, id := range []string{"", "..", "../../etc/passwd", "ABCDEF0123", "abc", strings.Repeat("a", 200), one + "/", one + "\n"} {
		_, err := c.Fetch(t.Context(), id)
		require.ErrorIs(t, err, ErrNotFound, id)
	}
	require.Empty(t, s.asked())
}

// Wrong, oversized and endless responses must leave no files.
func TestBadAnswers(t *testing.T) {
	goOn := make(chan struct{})
	for name, answer := range map[string]func(w http.ResponseWriter, id string){
		"another file": func(w http.ResponseWriter, _ string) { _, _ = w.Write(file(t, two, 500)) },
		"no ELF file":  func(w http.ResponseWriter, _ string) { _, _ = w.Write([]byte("<html>")) },
		"too large":    func(w http.ResponseWriter, id string) { _, _ = w.Write(file(t, id, 3000)) },
		"endless": func(w http.ResponseWriter, id string) {
			for {
				if _, err := w.Write(file(t, id, 500)); err != nil {
					return
				}
			}
		},
		"cut": func(w http.ResponseWriter, id string) {
			w.Header().Set("Content-Length", "1500")
			_, _ = w.Write(file(t, id, 500))
		},
		"broken": func(w http.ResponseWriter, _ string) { w.WriteHeader(http.StatusInternalServerError) },
		"stuck":  func(http.ResponseWriter, string) { <-goOn },
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, answer)
			if name == "stuck" {
				defer close(goOn)
			}
			c := client(t, Options{URLs: []string{s.URL}, FileBytes: 2000, Timeout: 200 * time.Millisecond})
			_, err := c.Fetch(t.Context(), one)
			require.Error(t, err)
			_, err = c.Fetch(t.Context(), one)
			require.Error(t, err)
			left, err := os.ReadDir(c.options.Dir)
			require.NoError(t, err)
			require.Empty(t, left)
			if name != "cut" {
				require.Len(t, s.asked(), 1, "not again at once")
			}
		})
	}
}

// A new Client must keep a running Client's partial file in the same folder, and remove an exited process's partial file.
func TestSharedFolder(t *testing.T) {
	began, goOn := make(chan struct{}), make(chan struct{})
	want := file(t, one, 1000)
	s := serve(t, func(w http.ResponseWriter, _ string) {
		_, _ = w.Write(want[:500])
		w.(http.Flusher).Flush()
		close(began)
		<-goOn
		_, _ = w.Write(want[500:])
	})
	dir := t.TempDir()
	left := filepath.Join(dir, partial+"left")
	require.NoError(t, os.WriteFile(left, nil, 0o600))
	old := time.Now().Add(-2 * time.Hour)
	require.NoError(t, os.Chtimes(left, old, old))
	getting := client(t, Options{URLs: []string{s.URL}, Dir: dir})
	require.NoFileExists(t, left)
	got := make(chan error)
	go func() {
		f, err := getting.Fetch(t.Context(), one)
		if err == nil {
			f.Close()
		}
		got <- err
	}()
	<-began
	require.Eventually(t, func() bool {
		begun, err := filepath.Glob(filepath.Join(dir, partial+"*"))
		return err == nil && len(begun) == 1
	}, 20*time.Second, time.Millisecond)
	client(t, Options{URLs: []string{s.URL}, Dir: dir})
	close(goOn)
	require.NoError(t, <-got)
	require.FileExists(t, filepath.Join(dir, one+suffix))
}

func TestEnds(t *testing.T) {
	goOn := make(chan struct{})
	s := serve(t, func(http.ResponseWriter, string) { <-goOn })
	defer close(goOn)
	c := client(t, Options{URLs: []string{s.URL}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Fetch(ctx, one)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.False(t, c.isMissing(s.URL), "it is not the server's fault")
}

func TestRoom(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, id string) { _, _ = w.Write(file(t, id, 1000)) })
	c := client(t, Options{URLs: []string{s.URL}, DirBytes: 2500})
	fetch := func(id string) {
		f, err := c.Fetch(t.Context(), id)
		require.NoError(t, err)
		f.Close()
	}
	old := time.Now().Add(-time.Hour)
	fetch(one)
	require.NoError(t, os.Chtimes(filepath.Join(c.options.Dir, one+suffix), old, old))
	fetch(two)
	require.NoError(t, os.Chtimes(filepath.Join(c.options.Dir, two+suffix), old, old))
	fetch(one) // used
	fetch(three)
	require.Equal(t, []string{one, two, three}, s.asked())
	require.FileExists(t, filepath.Join(c.options.Dir, one+suffix))
	require.NoFileExists(t, filepath.Join(c.options.Dir, two+suffix))
	c = client(t, Options{URLs: []string{s.URL}, DirBytes: 100})
	_, err := c.Fetch(t.Context(), one)
	require.ErrorIs(t, err, ErrNotFound)
}

// TestSecrets causes all errors that a URL with a password can cause. No error may show the password.
func TestSecrets(t *testing.T) {
	for _, url := range []string{"ftp://u:s3cr3t@d.example.org?k=s3cr3t", "https://u:s3cr3t@d.example.org:port", "https://u:s3cr3t@%zz/"} {
		_, err := New(Options{URLs: []string{url}, Dir: t.TempDir()})
		require.Error(t, err)
		require.NotContains(t, err.Error(), "s3cr3t")
	}
	c := client(t, Options{URLs: []string{"http://u:s3cr3t@127.0.0.1:1/x?k=s3cr3t"}})
	for range 2 { // on the second call, the server is known to be down
		_, err := c.Fetch(t.Context(), strings.Repeat("ab", 20))
		require.ErrorContains(t, err, "http://127.0.0.1:1/x")
		require.NotContains(t, err.Error(), "s3cr3t")
	}
}

func TestSettings(t *testing.T) {
	for want, o := range map[string]Options{
		"must be a URL":                 {URLs: []string{"debuginfod.example.org"}, Dir: t.TempDir()},
		"no cache folder":               {URLs: []string{"https://debuginfod.example.org"}},
		"creating the folder for the f": {URLs: []string{"https://debuginfod.example.org"}, Dir: "/proc/nothing"},
	} {
		_, err := New(o)
		require.ErrorContains(t, err, want)
	}
}
