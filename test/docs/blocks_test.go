package docs

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// marks lists the marks that can follow a block's language.
var marks = []string{"cluster", "elsewhere", "long", "tested", "unrun"}

// block is a block of shell commands on a page.
type block struct {
	page string
	line int
	mark string
	text string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// indented matches commands in blocks without a language.
var indented = regexp.MustCompile(`^ {4,}(sudo |ig |make |kubectl |curl |go |build/bin/|cosign |helm )`)

// blocks returns the shell blocks of a page, and fails the test for commands outside of them.
func blocks(t *testing.T, page, text string) []block {
	t.Helper()
	var found []block
	var open *block
	fence, before := "", "" // the line of text before a block
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case fence == "" && strings.HasPrefix(trimmed, "```"):
			fence = trimmed
			language, mark, _ := strings.Cut(strings.TrimPrefix(trimmed, "```"), " ")
			if slices.Contains([]string{"sh", "bash", "shell", "console"}, language) {
				require.Equal(t, "sh", language, "%s:%d: mark blocks of commands as sh", page, i+1)
				if mark != "" {
					require.Contains(t, marks, mark, "%s:%d", page, i+1)
				}
				if mark == "unrun" {
					require.Contains(t, before, "not run", "%s:%d: the line before a block unrun must say so", page, i+1)
				}
				open = &block{page: page, line: i + 2, mark: mark}
			}
		case fence != "" && trimmed == "```":
			fence = ""
			if open != nil {
				found = append(found, *open)
				open = nil
			}
		case open != nil:
			open.text += line + "\n"
		case fence == "":
			require.NotRegexp(t, indented, line, "%s:%d: put commands into a block of ```sh, which is run", page, i+1)
			if trimmed != "" {
				before = line
			}
		}
	}
	require.Empty(t, fence, "%s: a block has no end", page)
	return found
}

// pages returns the shell blocks of all pages.
func pages(t *testing.T) (all []block) {
	t.Helper()
	texts := texts(t)
	for _, page := range slices.Sorted(maps.Keys(texts)) {
		all = append(all, blocks(t, page, texts[page])...)
	}
	return all
}

// TestBlocks checks the rules for blocks of commands.
func TestBlocks(t *testing.T) {
	require.Greater(t, len(pages(t)), 15)
}
