package printable

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"":                           "",
		"main.(*T).work[...]":        "main.(*T).work[...]",
		"größe 世界 ·":                 "größe 世界 ·",
		"a\x1b[2Jb":                  "a�[2Jb",
		"two\nlines\r\t":             "two�lines��",
		"del\x7f csi\u009b nul\x00":  "del� csi� nul�",
		"\u202egnp.exe\u2066x\u200f": "�gnp.exe�x�",
		"a\u2028b\u2029":             "a�b�",
		"bad\xff\xfename":            "bad�name",
		"bad\xff\x1b":                "bad��",
	} {
		got := Clean(in)
		require.Equal(t, want, got, "%q", in)
		require.Equal(t, got, Clean(got))
	}
	require.Zero(t, testing.AllocsPerRun(10, func() { Clean("main.(*T).work 世界") }))
}

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		in  string
		n   int
		out string
	}{
		{"", 0, ""},
		{"abc", 4, "abc"},
		{"abc", 3, "abc"},
		{"abc", 2, "ab"},
		{"é", 2, "é"},
		{"aé", 3, "aé"},
		{"aéb", 2, "a"},
		{"a\xc3", 2, "a"},
		{"a€", 3, "a"},
		{"a😀", 4, "a"},
		{"a😀", 5, "a😀"},
		{"a\x80", 2, "a\x80"},
		{"\x80\x80\x80\x80\x80", 4, "\x80\x80\x80\x80"},
	} {
		require.Equal(t, tt.out, Cut(tt.in, tt.n), "%q", tt.in)
	}
}
