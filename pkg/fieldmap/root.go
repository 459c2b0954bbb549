package fieldmap

import (
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// These frames are at the root of incomplete stacks.
const (
	rootNone       = "[no stack]"
	rootLost       = "[lost user stack]"
	rootCutOff     = "[truncated]"
	rootIncomplete = "[incomplete]"
)

// root determines which part of a stack is missing, and appends a frame at the root that shows it. Without that frame, a flame
// graph would show a part as the whole stack, and hide samples without frames. A stack is incomplete if its outermost function
// is not a known entry point. It only gets a frame with mark, or if its unwinder failed. ends[i] is where the frames of field
// i end, and fates[i] is their outcome.
func (s stackFields) root(frames []profile.Frame, ends []int, fates []stack.Outcome, mark bool) ([]profile.Frame, profile.Fate) {
	fate, start := profile.Whole, 0
	mark = mark || slices.Contains(fates, stack.Partial)
	if len(frames) == 0 {
		fate = profile.NoStack
	}
	for i := range s {
		user := frames[start:ends[i]]
		start = ends[i]
		switch o := fates[i]; {
		case o == stack.Lost && s[i].user != nil:
			if fate != profile.NoStack {
				fate = profile.Lost
			}
			return append(frames, profile.Frame{Name: rootLost}), fate
		case o == stack.Lost:
			if fate != profile.NoStack {
				fate = profile.Lost
			}
		case o == stack.Truncated:
			return append(frames, profile.Frame{Name: rootCutOff}), profile.Truncated
		case fate == profile.Whole && s[i].user != nil && len(user) > 0 && !begins(user):
			if mark {
				frames = append(frames, profile.Frame{Name: rootIncomplete})
			}
			return frames, profile.Incomplete
		}
	}
	if fate == profile.NoStack && len(s) > 0 {
		frames = append(frames, profile.Frame{Name: rootNone})
	}
	return frames, fate
}

// entries lists the first functions of programs and threads with glibc and musl. goEntries lists, without "runtime.", the first
// functions of goroutines, Go's threads and code on Go's system stacks.
var entries = []string{
	"_start", "_start_c", "__libc_start_main", "__libc_start_call_main", "_dl_start_user", "_dl_start",
	"start_thread", "thread_start", "clone", "clone3", "__clone", "__clone3", "__clone_internal", "_dl_relocate_static_pie",
}

var goEntries = []string{"goexit", "rt0_go", "mstart", "mcall", "systemstack"}

// begins reports whether the outermost function of a user stack is a known entry point. It also returns true if that function
// has no name.
func begins(user []profile.Frame) bool {
	name, _, _ := strings.Cut(user[len(user)-1].Name, "@") // remove glibc's symbol version
	name = strings.TrimPrefix(name, "__GI_")               // glibc's internal alias of an exported function
	if of, ok := strings.CutPrefix(name, "runtime."); ok {
		return slices.Contains(goEntries, strings.TrimSuffix(of, ".abi0"))
	}
	return name == "" || strings.HasPrefix(name, "[") || slices.Contains(entries, name) || strings.HasPrefix(name, "_rt0_") ||
		strings.HasPrefix(name, "__libc_start_main")
}
