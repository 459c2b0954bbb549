package unwinder

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

// A language is listed if its interpreter has run, but no sample in this run has a frame of it.
func TestUnseen(t *testing.T) {
	var before, now wire.Stats
	count := func(s *wire.Stats, language wire.FrameType, expected, missing uint64) {
		s.Languages[language].Expected, s.Languages[language].Missing = expected, missing
	}
	count(&before, wire.FrameBEAM, 1000, 7) // in an earlier run
	count(&now, wire.FrameBEAM, 1000+enough, 7+enough)
	count(&now, wire.FrameDotnet, 400, 400)
	count(&now, wire.FrameRuby, 30, 30)
	count(&now, wire.FramePython, 400, 399)        // one sample has a frame
	count(&now, wire.FrameJVM, enough-1, enough-1) // too few to tell
	require.Equal(t, []string{
		"30 samples of processes that run Ruby have no frames of that language, so functions are missing. The unwinder might not support the runtime's version, or the runtime's library has no symbols",
		"400 samples of processes that run .NET have no frames of that language, so functions are missing. The unwinder supports .NET 6 to 10, if the runtime's folder is named after its version. It does not support self-contained programs",
		"20 samples of processes that run BEAM have no frames of that language, so functions are missing. The unwinder supports OTP 27 and 28, if beam.smp has a symbol table",
	}, unseen(before, now, unwinder.Settings{Languages: "all"}))
	require.Empty(t, unseen(now, now, unwinder.Settings{Languages: "all"}))
}

// A run lists only languages that it requested, even if other runs of the unwinder requested more.
func TestUnseenOfThoseAskedFor(t *testing.T) {
	var now wire.Stats
	for l := range now.Languages {
		now.Languages[l] = wire.Language{Expected: enough, Missing: enough}
	}
	told := func(languages string) (words []string) {
		t.Helper()
		s := unwinder.Settings{Languages: languages}
		require.NoError(t, s.Check())
		for _, line := range unseen(wire.Stats{}, now, s) {
			words = append(words, regexp.MustCompile(`that run (.*) have no frame`).FindStringSubmatch(line)[1])
		}
		return words
	}
	for name, word := range map[string]string{
		"beam": "BEAM", "dotnet": ".NET", "java": "Java", "lua": "LuaJIT", "node": "Node.js", "perl": "Perl", "php": "PHP", "python": "Python", "ruby": "Ruby",
	} {
		require.Equal(t, []string{word}, told(name))
	}
	require.Equal(t, []string{"Python", "Ruby"}, told("go,python,ruby"))
	require.Empty(t, told("go,native"))
}
