package loads

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCatalog(t *testing.T) {
	seen := map[string]bool{}
	for _, l := range slices.Concat(All(), Apart()) {
		require.False(t, seen[l.Name], l.Name)
		seen[l.Name] = true
		require.LessOrEqual(t, len(l.Name), 15, "%s is longer than a thread's name", l.Name)
		require.NotEmpty(t, l.What)
		require.NotNil(t, l.build)
		sum := 0.0
		for _, s := range l.Shares {
			sum += s.Percent
		}
		if l.Known() {
			require.InDelta(t, 100, sum, 0)
			require.Equal(t, l.Entry, l.Chain[0])
		}
		found, err := Find(l.Name)
		require.NoError(t, err)
		require.Equal(t, l.What, found.What)
	}
	_, err := Find("cobol")
	require.ErrorContains(t, err, "python")
}

func TestIs(t *testing.T) {
	for _, name := range []string{
		"heavy", "main.heavy", "load::heavy(load::Part&)", "load::heavy", "Load.heavy", "load::heavy::h0123456789abcdef", "Object#heavy",
		"void Load.heavy()", "main::heavy", "load:heavy/0", "load:heavy/12",
	} {
		require.True(t, Is(name, "heavy"), name)
	}
	for _, name := range []string{"", "main.heavyweight", "not_heavy", "heavy.light", "light(heavy)", "load:light/0", "heavy/light", strings.Repeat("x", 99)} {
		require.False(t, Is(name, "heavy"), name)
	}
	require.True(t, Is("<module>", "<module>"))
	require.True(t, Is("main.main", "main"))
}

// TestMakefilePackages checks that make installs the loads' packages.
func TestMakefilePackages(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	for variable, of := range map[string][]Load{"LOAD_PACKAGES": All(), "APART_PACKAGES": Apart()} {
		list := regexp.MustCompile(`(?m)^` + variable + ` := (.*)$`).FindSubmatch(makefile)
		require.NotNil(t, list, variable)
		require.Equal(t, Packages(of), strings.Fields(string(list[1])), variable)
	}
}
