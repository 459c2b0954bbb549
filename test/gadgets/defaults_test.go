//go:build e2e

package gadgets

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

// TestDefaults compares each parameter's default in gadget.yaml, which users see, with the default in the program, which takes
// effect. Inspektor Gadget does not set a parameter to its default.
func TestDefaults(t *testing.T) {
	for _, g := range all() {
		if g.origin != here {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			metadata := viper.New()
			metadata.SetConfigFile(filepath.Join("../../gadgets", g.name, "gadget.yaml"))
			require.NoError(t, metadata.ReadInConfig())
			params := metadata.GetStringMap("params.ebpf")
			objects := objectsOf(t, igtest.Built(t, igtest.Gadgets, g.name+".tar"))
			if len(objects) == 0 {
				require.Empty(t, params, "parameters of missing programs")
				return
			}
			require.Len(t, objects, 2, "one for each architecture")
			for _, spec := range objects {
				for name := range params {
					want := metadata.GetString("params.ebpf." + name + ".defaultvalue")
					require.NotNil(t, spec.Variables[name], "no variable %s", name)
					require.Equal(t, want, valueOf(t, spec.Variables[name]), name)
				}
			}
		})
	}
}

// objectsOf returns the eBPF programs of an image.
func objectsOf(t *testing.T, archive string) (objects []*ebpf.CollectionSpec) {
	t.Helper()
	for _, blob := range blobs(t, archive) {
		if bytes.HasPrefix(blob, []byte("\x7fELF")) {
			spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(blob))
			require.NoError(t, err)
			objects = append(objects, spec)
		}
	}
	return objects
}

// blobs returns the files of an image's archive, by their digests.
func blobs(t *testing.T, archive string) map[string][]byte {
	t.Helper()
	f, err := os.Open(archive)
	require.NoError(t, err)
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		files["sha256:"+filepath.Base(head.Name)], err = io.ReadAll(r)
		require.NoError(t, err)
	}
}

// valueOf returns a variable's initial value, written as in gadget.yaml.
func valueOf(t *testing.T, v *ebpf.VariableSpec) string {
	t.Helper()
	switch typ := btf.UnderlyingType(v.Type.Type).(type) {
	case *btf.Array:
		return strings.TrimRight(string(v.Value), "\x00")
	case *btf.Int:
		if typ.Encoding == btf.Bool {
			return fmt.Sprint(v.Value[0] != 0)
		}
		if typ.Size == 8 {
			var n uint64
			require.NoError(t, v.Get(&n))
			return fmt.Sprint(n)
		}
		var n int32
		require.NoError(t, v.Get(&n))
		return fmt.Sprint(n)
	default:
		t.Fatalf("a parameter of the type %v", typ)
		return ""
	}
}
