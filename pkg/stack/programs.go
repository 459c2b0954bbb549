package stack

import (
	"cmp"
	"encoding/hex"
	"errors"
	"os"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/cilium/ebpf"
)

// programTable holds the addresses of the loaded eBPF programs. While a gadget runs, programs are loaded and unloaded, and a
// new program can take an old one's place in memory. The symbols from the gadget's start would then give it the old name. A
// programTable is safe for concurrent use.
type programTable struct {
	mu      sync.Mutex
	looked  time.Time
	byID    map[ebpf.ProgramID]bool
	code    []programCode // sorted by start
	used    int           // the number of unloaded functions that occurred in stacks
	unknown bool          // programs cannot be listed
}

// programCode is a function of a program.
type programCode struct {
	start, end uint64
	name       string
	id         ebpf.ProgramID
	used       bool // it occurred in a stack
}

// lookAgain is the minimum time between two checks of the loaded programs, or modules. A check of the programs takes some
// microseconds, plus twenty for each new program.
const lookAgain = time.Second

// maxPrograms limits the number of known programs.
const maxPrograms = 4096

// name returns the function at an address, or "". known is false if programs cannot be listed.
func (t *programTable) name(addr uint64, now time.Time) (name string, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.look(now)
	i := sort.Search(len(t.code), func(i int) bool { return t.code[i].start > addr }) - 1
	if i < 0 || addr >= t.code[i].end {
		return "", !t.unknown
	}
	t.code[i].used = true
	return t.code[i].name, true
}

// changes returns the number of unloaded functions that occurred in stacks. A later stack with the same addresses can contain
// other functions.
func (t *programTable) changes(now time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.byID) > 0 { // otherwise no name was requested yet
		t.look(now)
	}
	return t.used
}

// look finds new and removed programs. The caller holds mu.
func (t *programTable) look(now time.Time) {
	if t.unknown || !t.looked.IsZero() && now.Sub(t.looked) < lookAgain {
		return
	}
	t.looked = now
	there := map[ebpf.ProgramID]bool{}
	for id := ebpf.ProgramID(0); len(there) < maxPrograms; {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			t.unknown, t.code, t.byID = true, nil, nil // CAP_SYS_ADMIN is missing
			return
		}
		id = next
		there[id] = true
	}
	t.code = slices.DeleteFunc(t.code, func(c programCode) bool {
		gone := !there[c.id]
		if gone && c.used {
			t.used++
		}
		return gone
	})
	sorted := true
	for id := range there {
		if !t.byID[id] {
			t.code = append(t.code, programFunctions(id)...)
			sorted = false
		}
	}
	if !sorted {
		slices.SortFunc(t.code, func(a, b programCode) int { return cmp.Compare(a.start, b.start) })
	}
	t.byID = there
}

// programFunctions returns a program's functions, named like the kernel's symbols. It returns none if the program was removed
// or its addresses are hidden.
func programFunctions(id ebpf.ProgramID) []programCode {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return nil
	}
	addrs, ok := info.JitedKsymAddrs()
	lens, sized := info.JitedFuncLens()
	if !ok || !sized || len(addrs) != len(lens) {
		return nil
	}
	names := make([]string, len(addrs))
	if funcs, err := info.FuncInfos(); err == nil && len(funcs) == len(addrs) {
		for i := range funcs {
			names[i] = funcs[i].Func.Name
		}
	}
	tag := info.Tag
	if raw, err := hex.DecodeString(tag); err != nil || len(raw) != 8 {
		tag = "0000000000000000"
	}
	var code []programCode
	for i, a := range addrs {
		if a == 0 || lens[i] == 0 {
			continue
		}
		if names[i] == "" {
			names[i] = info.Name
		}
		name := "bpf_prog_" + tag
		if names[i] != "" {
			name += "_" + functionName(names[i])
		}
		code = append(code, programCode{start: uint64(a), end: uint64(a) + uint64(lens[i]), name: name, id: id})
	}
	return code
}
