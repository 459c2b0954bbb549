//go:build e2e

package gadgets

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igrun"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// block returns the code block between a page's markers of that name.
func block(t *testing.T, page []byte, name string) string {
	t.Helper()
	found := regexp.MustCompile("(?s)<!-- begin " + regexp.QuoteMeta(name) + " -->\n\n```[a-z ]*\n(.*?)```\n").FindSubmatch(page)
	require.NotNil(t, found, "the page has no %s", name)
	return string(found[1])
}

// TestFirstGadget builds the gadget of the page for new authors, with the page's own commands, and runs it.
func TestFirstGadget(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	page, err := os.ReadFile("../../docs/develop/first-gadget.md")
	require.NoError(t, err)
	top, ig := t.TempDir(), igtest.Built(t, igtest.Bin, "ig")
	require.NoError(t, os.CopyFS(filepath.Join(top, "gadgets"), os.DirFS("../../gadgets")))
	require.NoError(t, os.MkdirAll(filepath.Join(top, "count_opens"), 0o755))
	for _, name := range []string{"program.bpf.c", "gadget.yaml"} {
		text := block(t, page, name)
		lines := strings.Count(text, "\n")
		t.Logf("%s: %d lines", name, lines)
		require.LessOrEqual(t, lines, 60)
		require.NoError(t, os.WriteFile(filepath.Join(top, "count_opens", name), []byte(text), 0o644))
	}
	commands := strings.Split(strings.TrimSpace(block(t, page, "commands")), "\n")
	require.Len(t, commands, 4)
	script := strings.ReplaceAll(strings.Join(commands[:2], "\n"), "build/bin/ig", ig)
	igtest.Output(t, "sh", "-ec", "cd "+top+"\n"+script)

	start(t, compile(t, "opens"))
	for _, quiet := range []bool{false, true} {
		r, err := export(t, options{image: "count_opens:dev", seconds: 2, quiet: quiet, flags: []string{"--comm=opens"},
			until: opensEnough})
		require.NoError(t, err)
		if !quiet {
			r.requireSound(t)
			require.NotContains(t, string(r.printed), "user_stack_id", "internal fields are not exported")
			require.NotContains(t, string(r.printed), "user_stack_key")
		}
		require.Equal(t, quiet, bytes.Contains(r.log, []byte("stacks are not formatted as text, because rows are not printed")))
		for _, s := range r.samples {
			require.Equal(t, receiver.Type{Type: "opens", Unit: "count", PeriodType: "file_opens", PeriodUnit: "count", Period: 1}, receiver.TypeOf(s))
		}
		inBoth("opens", "open_present", "open_missing")(t, r)
	}
	checkFromPage(t, page, top)
}

// checkFromPage runs the page's check of the first gadget, in a folder like a clone.
func checkFromPage(t *testing.T, page []byte, top string) {
	t.Helper()
	for _, dir := range []string{"build/bin", "test/gadgets/testdata"} {
		require.NoError(t, os.MkdirAll(filepath.Join(top, dir), 0o755))
	}
	bin := filepath.Join(top, "build/bin")
	for _, name := range []string{"ig", "unwinder"} {
		built, err := filepath.Abs(igtest.Built(t, igtest.Bin, name))
		require.NoError(t, err)
		require.NoError(t, os.Symlink(built, filepath.Join(bin, name)))
	}
	igtest.Output(t, "go", "build", "-o", filepath.Join(bin, "profile"), "../../cmd/profile")
	require.NoError(t, os.CopyFS(filepath.Join(top, "test/gadgets/testdata"), os.DirFS("testdata")))

	command := append(igrun.Prefix(), "bash", "-ec", "cd "+top+"\n"+block(t, page, "check")+"\nkill %1")
	printed := igtest.Output(t, command[0], command[1:]...)
	t.Log(printed)
	// On a busy machine, a part of the opens can lack names. Then both functions have less than half.
	var shares []float64
	for _, function := range []string{"open_missing", "open_present"} {
		found := regexp.MustCompile(`- +(\d+\.\d)% +- +opens +` + function).FindStringSubmatch(printed)
		require.NotNil(t, found, function)
		share, err := strconv.ParseFloat(found[1], 64)
		require.NoError(t, err)
		require.Greater(t, share, 25.0)
		shares = append(shares, share)
	}
	require.InDelta(t, shares[0], shares[1], 1)
}

// buildFromPage builds a gadget from its program and from the parts of its gadget.yaml.
func buildFromPage(t *testing.T, image, program string, parts ...string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "include"), os.DirFS("../../gadgets/include")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "program.bpf.c"), []byte(program), 0o644))
	metadata := map[string]any{}
	for _, part := range parts {
		var more map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(part), &more))
		merge(metadata, more)
	}
	text, err := yaml.Marshal(metadata)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "gadget.yaml"), text, 0o644))
	igtest.Output(t, igtest.Built(t, igtest.Bin, "ig"), "image", "build", "--local", "-t", image, dir)
}

// TestFirstGadgetAttribute adds the page's sample attribute to its gadget.
func TestFirstGadgetAttribute(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	page, err := os.ReadFile("../../docs/develop/first-gadget.md")
	require.NoError(t, err)
	program := block(t, page, "program.bpf.c")
	member, assignment, _ := strings.Cut(block(t, page, "attribute program.bpf.c"), "\n")
	for _, part := range [][2]string{{"user_stack_key;\n", member + "\n"}, {"fill_process(&key.proc);\n", assignment}} {
		require.Equal(t, 1, strings.Count(program, part[0]))
		program = strings.Replace(program, part[0], part[0]+part[1], 1)
	}
	buildFromPage(t, "count_opens_flags:dev", program, block(t, page, "gadget.yaml"), block(t, page, "attribute gadget.yaml"))

	start(t, compileAs(t, "opens", "opens_flags"))
	r, err := export(t, options{image: "count_opens_flags:dev", seconds: 2, flags: []string{"--comm=opens_flags"}, until: opensEnough})
	require.NoError(t, err)
	r.requireSound(t)
	opens := igtest.Through(r.of("opens_flags"), "open_present")
	require.NotEmpty(t, opens)
	for _, s := range opens {
		require.Equal(t, strconv.Itoa(syscall.O_CLOEXEC), s.Attributes["open.flags"])
	}
}

// TestFirstGadgetWhole builds the page's gadget with whole stacks. Its gadget.yaml has the keys of the first example and more.
func TestFirstGadgetWhole(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	page, err := os.ReadFile("../../docs/develop/first-gadget.md")
	require.NoError(t, err)
	buildFromPage(t, "count_opens_whole:dev", block(t, page, "whole program.bpf.c"), block(t, page, "gadget.yaml"), block(t, page, "whole gadget.yaml"))

	start(t, compileAs(t, "opens", "opens_whole"))
	r, err := export(t, options{image: "count_opens_whole:dev", seconds: 2, flags: []string{"--comm=opens_whole", "--unwind=whole"}, until: opensEnough})
	require.NoError(t, err)
	r.requireSound(t)
	require.Regexp(t, `unwind: \d+ events sampled, [1-9]\d* unwound`, string(r.log))
	inBoth("opens_whole", "open_present", "open_missing")(t, r)
}

// TestFirstGadgetSampling adds the page's lines for sampling to its gadgets: with the unwinder, and without it. A sampled event
// represents several, so the sums of the two functions are equal only on average.
func TestFirstGadgetSampling(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	page, err := os.ReadFile("../../docs/develop/first-gadget.md")
	require.NoError(t, err)
	include := [2]string{"#include \"include/process.h\"\n", "#include \"include/draw.h\"\n#include \"include/process.h\"\n"}
	_, replaced, ok := strings.Cut(block(t, page, "whole program.bpf.c"), "\tif (unwind_on ")
	require.True(t, ok)
	replaced, _, ok = strings.Cut("\tif (unwind_on "+replaced, "\tif (!add_event")
	require.True(t, ok)
	put := "\tkey.user_stack_key = put_user_stack("

	start(t, compileAs(t, "opens", "opens_sampled"))
	for _, tt := range []struct {
		image, example string
		flags          []string
		changes        [][2]string
		more           []string // parts of gadget.yaml
	}{
		{"count_opens_sampled_whole:dev", "whole program.bpf.c", []string{"--unwind=whole"},
			[][2]string{include, {replaced, block(t, page, "sampling whole program.bpf.c")}},
			[]string{"whole gadget.yaml", "sampling whole gadget.yaml"}},
		{"count_opens_sampled:dev", "program.bpf.c", nil,
			[][2]string{include, {put, block(t, page, "sampling program.bpf.c") + put}, {"&row->opens, 1)", "&row->opens, drawn.events)"}}, nil},
	} {
		program, parts := block(t, page, tt.example), []string{block(t, page, "gadget.yaml")}
		for _, change := range tt.changes {
			require.Equal(t, 1, strings.Count(program, change[0]), change[0])
			program = strings.Replace(program, change[0], change[1], 1)
		}
		for _, name := range tt.more {
			parts = append(parts, block(t, page, name))
		}
		buildFromPage(t, tt.image, program, parts...)

		sums := func(samples []receiver.Sample) (int64, int64) {
			return igtest.Total(igtest.Through(samples, "open_present")), igtest.Total(igtest.Through(samples, "open_missing"))
		}
		r, err := export(t, options{image: tt.image, seconds: 2, flags: append([]string{"--comm=opens_sampled"}, tt.flags...), until: func(samples []receiver.Sample) bool {
			return min(sums(samples)) > 500
		}})
		require.NoError(t, err)
		r.requireSound(t)
		present, missing := sums(r.of("opens_sampled"))
		t.Logf("%s: %d in open_present, %d in open_missing", tt.image, present, missing)
		require.InEpsilon(t, present, missing, 0.5)
	}
}

// merge adds the keys of more to those of into.
func merge(into, more map[string]any) {
	for key, value := range more {
		old, _ := into[key].(map[string]any)
		if added, ok := value.(map[string]any); ok && old != nil {
			merge(old, added)
		} else {
			into[key] = value
		}
	}
}

// TestTerminal checks the terminal output of a gadget.
func TestTerminal(t *testing.T) {
	igtest.NeedRoot(t)
	t.Parallel()
	start(t, compile(t, "busy"))
	for _, g := range []string{"profile_cpu", "profile_lock", "profile_offcpu", "profile_pagefault"} {
		t.Run(g, func(t *testing.T) {
			t.Parallel()
			o := options{image: igtest.Import(t, g), seconds: 3, output: "columns"}
			if g == "profile_cpu" {
				o.until = spins
			}
			r, err := export(t, o)
			require.NoError(t, err)
			header, _, _ := strings.Cut(string(r.printed), "\n")
			require.Contains(t, header, "USER_STACK_RAW.SYMBOLS")
			require.NotContains(t, string(r.printed), "bytes>", "a column with a field that is not text")
			require.NotContains(t, string(r.printed), "\x1b[", "the screen is cleared, and warnings with it")
			if g == "profile_cpu" {
				require.Regexp(t, `busy .* spin; `, string(r.printed))
			}
		})
	}
}
