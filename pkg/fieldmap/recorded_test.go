package fieldmap

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/buildid"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// TestRecordedBuildIDs checks that all addresses with one build ID are of one kind, although a gadget records offsets. That
// includes processes that exited before their files were known.
func TestRecordedBuildIDs(t *testing.T) {
	const id, other = "abcd", "ef01"
	file := &procmap.File{Path: "/bin/shop", Info: buildid.Info{GNU: id, HTLHash: "hash", Code: []buildid.Segment{{Offset: 0x1000, Size: 0x1000, Address: 0x401000}}}}
	recorded := func(id string, offset uint64) profile.Frame {
		return profile.Frame{Type: profile.FrameNative, Address: offset, Mapping: profile.Mapping{GNUBuildID: id}}
	}
	read := []profile.Frame{recorded(id, 0x1010), recorded(id, 0x1020), recorded(id, 0x9000), recorded(other, 0x1020)}
	known := []names.Frame{{State: names.NoSymbols, File: file, Offset: 0x1010, Address: 0x401010}, {State: names.Gone}, {State: names.Gone}, {State: names.Gone}}
	addresses := func(s *frameSettings, read []profile.Frame, known []names.Frame) (all []uint64) {
		frames, _ := s.append(nil, read, known)
		for i := range frames {
			require.Equal(t, read[i].Mapping.GNUBuildID, frames[i].Mapping.GNUBuildID)
			require.False(t, frames[i].Mapping.Symbolized, "it has no name")
			all = append(all, frames[i].Address)
		}
		return all
	}
	s := &frameSettings{FileForm: FileForm{Files: true}}
	require.Equal(t, []uint64{0x1020}, addresses(s, read[1:2], known[1:2]), "no file with that build ID was seen yet")
	require.Equal(t, []uint64{0x401010, 0x40101f, 0x8fff, 0x101f}, addresses(s, read, known), "of a caller one byte less")
	require.Equal(t, []uint64{0x1010, 0x101f, 0x8fff, 0x101f}, addresses(&frameSettings{FileForm: FileForm{Files: true, Offsets: true}}, read, known))
	require.Equal(t, []uint64{0x1010, 0x1020, 0x9000, 0x1020}, addresses(&frameSettings{}, read, known), "files are not wanted")
	// A process that reports another file changes nothing.
	known[0].File = &procmap.File{Path: "/bin/other", Info: buildid.Info{GNU: other, HTLHash: "other"}}
	s = &frameSettings{FileForm: FileForm{Files: true}}
	s.append(nil, read, known)
	require.Equal(t, []uint64{0x1020}, addresses(s, read[1:2], known[1:2]))
	for i := range 2 * maxRecorded {
		f := *file
		f.Info.GNU = fmt.Sprint(i)
		s.append(nil, []profile.Frame{recorded(f.Info.GNU, 1)}, []names.Frame{{State: names.NoSymbols, File: &f}})
	}
	require.LessOrEqual(t, len(s.recorded.code), maxRecorded)
}

// TestFileOfFrame checks that a frame gets everything that is known about its file, and that a file's name is no function's.
func TestFileOfFrame(t *testing.T) {
	file := &procmap.File{Path: "/bin/shop", Info: buildid.Info{GNU: "gnu", Go: "go", HTLHash: "htl"}}
	read := []profile.Frame{{Name: "[/bin/shop]"}, {Name: "main.f"}}
	known := []names.Frame{{State: names.Outside, File: file, Address: 1, Offset: 2}, {State: names.Outside, File: file, Address: 3, Offset: 4}}
	frames, _ := (&frameSettings{FileForm: FileForm{Files: true}}).append(nil, read, known)
	mapping := profile.Mapping{File: "/bin/shop", GNUBuildID: "gnu", GoBuildID: "go", HTLHash: "htl"}
	named := mapping
	named.Symbolized = true
	require.Equal(t, []profile.Frame{{Mapping: mapping, Address: 1}, {Name: "main.f", Type: profile.FrameGo, Mapping: named, Address: 3}}, frames)

	file.Info = buildid.Info{} // its identity is not known yet
	read[0].Mapping = profile.Mapping{File: "/bin/read"}
	frames, _ = (&frameSettings{FileForm: FileForm{Files: true}}).append(nil, read[:1], known)
	require.Equal(t, "/bin/read", frames[0].Mapping.File)
}

// TestFrameCounts checks that each frame counts once, up to where a stack has left the program's code.
func TestFrameCounts(t *testing.T) {
	var c frameCounts
	text, none := profile.Frame{Name: "f"}, profile.Frame{}
	c.count([]profile.Frame{none, none, text, text, none}, []names.Frame{{State: names.Outside}, {State: names.Pending}, {State: names.Pending}})
	c.count([]profile.Frame{none, none, none}, []names.Frame{{State: names.NotCode}, {State: names.NotCode}, {State: names.Outside}})
	got := map[names.State]uint64{}
	for state := range c {
		if n := c[state].Load(); n > 0 {
			got[names.State(state)] = n
		}
	}
	require.Equal(t, map[names.State]uint64{names.Outside: 1, names.Pending: 1, names.Named: 2, names.Gone: 1, names.NotCode: 1}, got)
}

func TestLabelKey(t *testing.T) {
	for key, want := range map[string]string{
		"service.name": "service.name", "k8s.pod.name": "k8s_pod_name", "azAZ_09": "azAZ_09", "09": "_09", "a-b/c": "a_b_c",
	} {
		require.Equal(t, want, labelKey(key))
	}
}

// TestRecordedThatDisagree checks that two different files with one build ID resolve nothing.
func TestRecordedThatDisagree(t *testing.T) {
	var r recordedIDs
	one := &buildid.Info{GNU: "aa", Code: []buildid.Segment{{Offset: 0x1000, Size: 0x1000, Address: 0x401000}}}
	r.saw(one)
	r.saw(one)
	address, ok := r.virtual("aa", 0x1010)
	require.True(t, ok)
	require.EqualValues(t, 0x401010, address)
	r.saw(&buildid.Info{GNU: "aa", Code: []buildid.Segment{{Offset: 0x1000, Size: 0x1000, Address: 0x501000}}})
	r.saw(one)
	_, ok = r.virtual("aa", 0x1010)
	require.False(t, ok)
}
