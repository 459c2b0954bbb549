package captures

import (
	"strings"
	"testing"

	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
)

func yaml(t testing.TB, text string) *viper.Viper {
	t.Helper()
	v := viper.New()
	v.SetConfigType("yaml")
	require.NoError(t, v.ReadConfig(strings.NewReader(text)))
	return v
}

func classifierOf(t *testing.T, text string) (classifier, error) {
	t.Helper()
	return newClassifier(gadgetcontext.New(t.Context(), "gadget"), yaml(t, text), lockKey, lockValue)
}

// If an allocator function calls another function of the same file, the allocation must count once.
func TestInner(t *testing.T) {
	j, err := classifierOf(t, "inner: [calloc, memalign, realloc]")
	require.NoError(t, err)
	libc, program := &procmap.File{Path: "libc"}, &procmap.File{Path: "program"}
	in := func(f *procmap.File, name string) frame {
		if f == nil {
			return frame{name: name}
		}
		return frame{f, name}
	}
	for _, tc := range []struct {
		caller frame
		want   verdict
	}{
		{in(libc, "calloc"), inner},
		{in(libc, "__libc_calloc"), inner},
		{in(libc, "__libc_memalign"), inner},
		{in(libc, "__realloc"), inner},
		{in(libc, "realloc@@GLIBC_2.2.5"), inner},
		{in(libc, "strdup"), kept},
		{in(libc, ""), kept},
		{in(program, "calloc"), kept},
		{in(nil, "calloc"), kept},
	} {
		l := exampleLayout(t)
		r := example{}.record(t, &l)
		require.Equal(t, tc.want, j.classify(r, &l, []frame{in(libc, "malloc"), tc.caller, in(program, "main")}), "%+v", tc.caller)
		require.True(t, j.wantsNames(r, &l))
	}
	l := exampleLayout(t)
	r := example{}.record(t, &l)
	require.Equal(t, kept, j.classify(r, &l, nil))
	require.Equal(t, kept, j.classify(r, &l, []frame{in(libc, "calloc")}))
	require.Equal(t, kept, j.classify(r, &l, []frame{{name: "malloc"}, {name: "calloc"}}), "of no file that is known")
	none := classifier{}
	require.False(t, none.wantsNames(r, &l))
	require.Empty(t, none.field())
}

// The metadata comes from an untrusted image.
func TestClassifierMetadata(t *testing.T) {
	for text, want := range map[string]string{
		"kinds: true":                       "kinds",
		"kinds: [a, b]":                     "kinds",
		"kinds: {}":                         "kinds",
		"kinds: {field: kind_raw}":          `kinds.of: "" is not a value`,
		"kinds: {field: kind_raw, of: [1]}": "kinds.of",
		"inner: [" + strings.Repeat("a,", 1000) + "b]": "inner: 1001 functions, more than the limit of",
	} {
		_, err := classifierOf(t, text)
		require.ErrorContains(t, err, want, text[:min(len(text), 40)])
	}
	for _, text := range []string{"inner: {a: b}", "inner: 1", "x: y"} {
		_, err := classifierOf(t, text)
		require.NoError(t, err, text)
	}
}
