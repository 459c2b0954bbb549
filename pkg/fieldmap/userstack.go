package fieldmap

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/names"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procmap"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"
)

// Namer finds the files and functions at addresses of a process. It never waits. names.Namer implements it.
type Namer interface {
	Resolve(dst []names.Frame, p procmap.Process, seen uint64, addrs []uint64) (frames []names.Frame, pending bool)
}

// userFrames are the frames of one user stack of a row.
type userFrames struct {
	field   int // the index of its stackField
	process procmap.Process
	seen    uint64
	addrs   []uint64 // one per frame; empty if frames have no addresses
	named   []names.Frame
	pending bool
}

// userFrames adds the frames of st from position from on to st.users, with their process and the Namer's answers.
func (f *stackField) userFrames(st *Stack, field, from int, d datasource.Data) {
	n := len(st.users)
	if n < cap(st.users) {
		st.users = st.users[:n+1] // reuse the memory of its lists
	} else {
		st.users = append(st.users, userFrames{})
	}
	u := &st.users[n]
	frames := len(st.frames) - from
	u.field, u.pending = field, false
	u.addrs, u.named = u.addrs[:0], u.named[:0]
	addrs := f.user.Addresses(frames)
	if f.namer == nil || len(addrs) != frames {
		return
	}
	u.addrs = append(u.addrs, addrs...)
	u.process = procmap.Process{
		PID: uint32(f.pid.number(d)), ExeInode: f.inode.number(d), Space: uint32(f.space.number(d)),
		ExeModified: int64(f.mtimeSec.number(d)*1e9 + f.mtimeNsec.number(d)),
	}
	u.seen = f.seen.number(d)
	u.named, u.pending = f.namer.Resolve(u.named, u.process, u.seen, u.addrs)
}

// frameSettings are the settings for the export of user frames.
type frameSettings struct {
	FileForm
	namer  Namer
	raw    bool // raw_addresses
	counts frameCounts

	recorded recordedIDs
}

// frameCounts counts user frames of distinct stacks by their state.
type frameCounts [names.NumStates]atomic.Uint64

// append appends the frames of a user stack in their exported form. read holds the row's frames. named holds the known names
// of their addresses, or nothing. The kernel follows frame pointers. After a function without one, it reads an arbitrary
// register. So append cuts a stack before a caller whose address is not in code, and returns astray.
func (s *frameSettings) append(dst, read []profile.Frame, named []names.Frame) (out []profile.Frame, astray bool) {
	for i := range read {
		var known names.Frame
		if i < len(named) {
			known = named[i]
		} else {
			known.State = names.Gone
			if read[i].Name != "" {
				known.State = names.Named
			}
		}
		if i > 0 && known.State == names.NotCode && !s.raw {
			return dst, true
		}
		// The innermost frame stays, because in a wrapper's first and last instructions, the next frame is not its caller.
		if i > 0 && i+1 < len(read) && known.Symbol.Wrapper() {
			continue
		}
		dst = s.frame(dst, &read[i], &known, i > 0)
	}
	return dst, false
}

// frame appends one frame, then the functions that it is inlined into. caller reports that it is not the innermost frame, so
// its address is a return address.
func (s *frameSettings) frame(dst []profile.Frame, read *profile.Frame, known *names.Frame, caller bool) []profile.Frame {
	f := profile.Frame{Name: read.Name, Type: read.Type}
	file := known.File
	switch {
	case known.Symbol.Name != "":
		SetSymbol(&f, &known.Symbol)
	case file != nil && isFileName(f.Name):
		f.Name = ""
	}
	switch {
	case s.Files && file != nil && file.Info.HTLHash != "":
		f.Mapping = profile.Mapping{
			File: file.Path, GNUBuildID: file.Info.GNU, GoBuildID: file.Info.Go, HTLHash: file.Info.HTLHash, Symbolized: f.Name != "",
		}
		if f.Address = known.Address; s.Offsets {
			f.Address = known.Offset
		}
		if id := read.Mapping.GNUBuildID; id != "" && id == file.Info.GNU {
			s.recorded.saw(&file.Info)
		}
	case read.Mapping != (profile.Mapping{}):
		f.Mapping, f.Address = read.Mapping, read.Address
		f.Mapping.Symbolized = f.Name != ""
		if s.Files && caller && f.Address > 0 {
			f.Address-- // as for addresses in known files
		}
		if s.Files && !s.Offsets {
			if addr, ok := s.recorded.virtual(f.Mapping.GNUBuildID, f.Address); ok {
				f.Address = addr
			}
		}
	case s.raw:
		f.Address = read.Address
	}
	if known.Go(f.Name) {
		f.Type = profile.FrameGo
	}
	if f.Name == "" && f.Mapping == (profile.Mapping{}) {
		switch {
		case file != nil:
			f.Name = stack.CutName(profile.FileName(file.Path))
		case known.State == names.Generated:
			f.Name = generated
		case f.Address == 0:
			f.Name = stack.Unknown
		}
	}
	return AppendInlined(dst, &f, &known.Symbol)
}

// AppendInlined appends the frame f of the function s, then the functions that it is inlined into. It changes f.
func AppendInlined(dst []profile.Frame, f *profile.Frame, s *symtab.Symbol) []profile.Frame {
	dst = append(dst, *f)
	for i := range s.Callers {
		if c := &s.Callers[i]; !c.Wrapper() {
			SetSymbol(f, c)
			dst = append(dst, *f)
		}
	}
	return dst
}

// SetSymbol sets the function of a frame.
func SetSymbol(f *profile.Frame, s *symtab.Symbol) {
	f.Name, f.File, f.Line, f.StartLine = stack.CutName(s.Name), stack.CutName(s.File), int64(s.Line), int64(s.StartLine)
}

// generated is the name of unnamed code outside files.
const generated = "[generated code]"

// isFileName reports whether a name looks like the result of profile.FileName, which represents an unnamed function.
func isFileName(name string) bool {
	return len(name) > 2 && name[0] == '[' && name[len(name)-1] == ']' && !strings.ContainsAny(name[1:len(name)-1], "[]")
}

// TextName returns the name of a frame in the text of a stack: the function's, or else the file's, or "". With functionOnly, it
// never returns the file's name, because another source can know the function.
func TextName(f *names.Frame, functionOnly bool) string {
	switch {
	case len(f.Symbol.Callers) > 0: // the text has one name per address: the function that is not inlined
		return stack.CutName(f.Symbol.Callers[len(f.Symbol.Callers)-1].Name)
	case f.Symbol.Name != "":
		return stack.CutName(f.Symbol.Name)
	case functionOnly:
	case f.File != nil:
		return stack.CutName(profile.FileName(f.File.Path))
	case f.State == names.Generated:
		return generated
	}
	return ""
}

// count counts the frames of one stack by state. It is safe for concurrent use.
func (c *frameCounts) count(read []profile.Frame, named []names.Frame) {
	for i := range read {
		if i > 0 && i < len(named) && named[i].State == names.NotCode {
			return // the rest is not part of the stack
		}
		switch {
		case i < len(named) && (named[i].State.Settled() || read[i].Name == ""):
			c[named[i].State].Add(1)
		case read[i].Name != "":
			c[names.Named].Add(1)
		default:
			c[names.Gone].Add(1)
		}
	}
}

// users sets s.Stack to the frames of st, with user frames as this Plan exports them. It returns the end of each field's
// frames and each outcome. A stack that append has cut counts as whole and not as truncated, however many frames were
// recorded.
func (p *Plan) users(s *profile.Sample, st *Stack) (ends []int, fates []stack.Outcome) {
	out := p.frames[:0]
	p.ends, p.fates = p.ends[:0], append(p.fates[:0], st.fates...)
	start := 0
	for field, end := range st.ends {
		i := slices.IndexFunc(st.users, func(u userFrames) bool { return u.field == field })
		if i < 0 {
			out = append(out, st.frames[start:end]...)
		} else {
			u, from := &st.users[i], len(out)
			var astray bool
			if out, astray = p.settings.append(out, st.frames[start:end], u.named); astray && p.fates[field] == stack.Truncated {
				p.fates[field] = stack.OK
			}
			if u.pending && s.Later == nil {
				s.Later, s.LaterFrom, s.LaterTo = newLater(&p.settings, u, st.frames[start:end]), from, len(out)
			} else {
				p.settings.counts.count(st.frames[start:end], u.named)
			}
		}
		start = end
		p.ends = append(p.ends, len(out))
	}
	p.frames, s.Stack = out, out
	return p.ends, p.fates
}

// laterFrames holds user frames with names that are still unknown. It implements profile.Later.
type laterFrames struct {
	settings *frameSettings
	process  procmap.Process
	seen     uint64
	addrs    []uint64
	read     []profile.Frame // nil if only addresses were read
	// With checkRoot, the outermost of these frames decides whether the stack is complete. The frames are then at the root, and
	// nothing else is missing. With mark, an incomplete stack gets a frame at its root. With cut, the recording reached its
	// limit: the stack is truncated unless append returns astray.
	checkRoot, mark, cut bool
}

func newLater(s *frameSettings, u *userFrames, read []profile.Frame) *laterFrames {
	l := &laterFrames{settings: s, process: u.process, seen: u.seen, addrs: slices.Clone(u.addrs)}
	if slices.ContainsFunc(read, func(f profile.Frame) bool { return f.Name != "" || f.Mapping != (profile.Mapping{}) }) {
		l.read = slices.Clone(read)
	}
	for i := range l.read {
		l.read[i].Name = strings.Clone(l.read[i].Name) // the names point into the row's text
	}
	return l
}

// laterScratch reuses memory between calls.
var laterScratch = sync.Pool{New: func() any { return new(userScratch) }}

type userScratch struct {
	read  []profile.Frame
	named []names.Frame
}

// Frames implements profile.Later.
func (l *laterFrames) Frames(dst []profile.Frame, last bool) (frames []profile.Frame, fate profile.Fate, all bool) {
	s := laterScratch.Get().(*userScratch)
	defer laterScratch.Put(s)
	named, pending := l.settings.namer.Resolve(s.named[:0], l.process, l.seen, l.addrs)
	read := l.read
	if read == nil {
		read = s.read[:0]
		for _, addr := range l.addrs {
			read = append(read, profile.Frame{Type: profile.FrameNative, Address: addr})
		}
		s.read = read
	}
	if last {
		l.settings.counts.count(read, named)
	}
	start := len(dst)
	dst, astray := l.settings.append(dst, read, named)
	s.named = named
	clear(named) // so that the pool does not retain files
	switch {
	case l.cut && !astray:
		dst, fate = append(dst, profile.Frame{Name: rootCutOff}), profile.Truncated
	case l.checkRoot && len(dst) > start && !begins(dst[start:]):
		fate = profile.Incomplete
		if l.mark {
			dst = append(dst, profile.Frame{Name: rootIncomplete})
		}
	}
	return dst, fate, !pending
}

// Size implements profile.Later.
func (l *laterFrames) Size() int {
	n := 200 + 8*len(l.addrs)
	for i := range l.read {
		n += 180 + len(l.read[i].Name)
	}
	return n
}
