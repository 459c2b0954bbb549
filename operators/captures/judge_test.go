package captures

import (
	"strings"
	"testing"

	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols"
)

func yaml(t testing.TB, text string) *viper.Viper {
	t.Helper()
	v := viper.New()
	v.SetConfigType("yaml")
	require.NoError(t, v.ReadConfig(strings.NewReader(text)))
	return v
}

func judgeOf(t *testing.T, text string) (judge, error) {
	t.Helper()
	gadgetCtx := gadgetcontext.New(t.Context(), "gadget")
	gadgetCtx.SetVar(operators.MapSpecPrefix+"rows", lockRows())
	return newJudge(gadgetCtx, yaml(t, text))
}

// An allocator's function that calls another one of the same file is counted once.
func TestInner(t *testing.T) {
	j, err := judgeOf(t, "inner: [calloc, memalign, realloc]")
	require.NoError(t, err)
	libc, program := &procmap.File{Path: "libc"}, &procmap.File{Path: "program"}
	frame := func(f *procmap.File, name string) names.Frame {
		return names.Frame{File: f, Symbol: symbols.Symbol{Name: name}}
	}
	for _, tc := range []struct {
		caller names.Frame
		want   verdict
	}{
		{frame(libc, "calloc"), inner},
		{frame(libc, "__libc_calloc"), inner},
		{frame(libc, "__libc_memalign"), inner},
		{frame(libc, "__realloc"), inner},
		{frame(libc, "realloc@@GLIBC_2.2.5"), inner},
		{frame(libc, "strdup"), kept},
		{frame(libc, ""), kept},
		{frame(program, "calloc"), kept},
		{frame(nil, "calloc"), kept},
	} {
		l := exampleLayout(t)
		r := example{}.record(t, &l)
		require.Equal(t, tc.want, j.judge(r, &l, []names.Frame{frame(libc, "malloc"), tc.caller, frame(program, "main")}), "%+v", tc.caller)
		require.True(t, j.wantsNames(r, &l))
	}
	l := exampleLayout(t)
	r := example{}.record(t, &l)
	require.Equal(t, kept, j.judge(r, &l, nil))
	require.Equal(t, kept, j.judge(r, &l, []names.Frame{frame(libc, "calloc")}))
	require.Equal(t, kept, j.judge(r, &l, []names.Frame{{Symbol: symbols.Symbol{Name: "malloc"}}, {Symbol: symbols.Symbol{Name: "calloc"}}}), "of no file that is known")
	none := judge{}
	require.False(t, none.wantsNames(r, &l))
	require.Empty(t, none.field())
}

// The metadata is part of an image from somewhere.
func TestJudgeMetadata(t *testing.T) {
	for text, want := range map[string]string{
		"kinds: true":                       "kinds",
		"kinds: [a, b]":                     "kinds",
		"kinds: {}":                         "kinds",
		"kinds: {field: kind_raw}":          `kinds.of: "" is no value`,
		"kinds: {field: kind_raw, of: [1]}": "kinds.of",
		"inner: [" + strings.Repeat("a,", 1000) + "b]": "inner: 1001 functions are more than",
	} {
		_, err := judgeOf(t, text)
		require.ErrorContains(t, err, want, text[:min(len(text), 40)])
	}
	for _, text := range []string{"inner: {a: b}", "inner: 1", "x: y"} {
		_, err := judgeOf(t, text)
		require.NoError(t, err, text)
	}
}
