package captures

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/spf13/viper"

	"github.com/ig-otel-profiles/ig-otel-profiles/operators/unwinder"
	readables "github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
)

const (
	// kindFrames is the number of innermost frames in which refine looks for the function that decides the kind.
	kindFrames = 6
	// mostNames limits the function names whose kinds are cached.
	mostNames = 4096
)

// kinds refines one kind of a gadget's rows, based on the innermost functions of the stacks. The metadata contains:
//
//	kinds:
//	  field: kind_raw     # the member of a row's key, an enum
//	  of: user_futex      # the value to refine
//	  param: all_futex    # if this parameter is "true", rows that no function refines are kept
//	  functions:
//	    user_mutex: ["pthread_mutex_*lock", …]
//	  others: {map: not_locks, address: address_raw} # see kindOthers
//
// The innermost function that is in a list decides. Lists contain demangled names, in which * matches any text. If the function
// is in the list of the value to refine, the search ends. The names of values are not case-sensitive, because viper's keys are
// lower case.
type kinds struct {
	field string
	of    uint32
	all   bool
	rules kindRules
	// others is nil if the metadata lacks it, or if the rows are kept.
	others *kindOthers
}

// kindOthers tells the gadget's programs which addresses to skip. Its map holds the time of the capture for each address and
// process.
type kindOthers struct {
	name string
	at   int // offset of the address in a row's value; address 0: nothing to skip
	m    *ebpf.Map
}

// newKinds reads the metadata. The names of the values come from the type of a row's key.
func newKinds(gadgetCtx operators.GadgetContext, metadata *viper.Viper, key, value *btf.Struct) (*kinds, error) {
	k := &kinds{field: metadata.GetString("field")}
	values, err := valuesOf(key, k.field)
	if err != nil {
		return nil, fmt.Errorf("kinds.field: %w", err)
	}
	of, ok := values[strings.ToLower(metadata.GetString("of"))]
	if !ok {
		return nil, fmt.Errorf("kinds.of: %q is not a value of %q", metadata.GetString("of"), k.field)
	}
	k.of = of
	for name, functions := range metadata.GetStringMapStringSlice("functions") {
		kind, ok := values[strings.ToLower(name)]
		if !ok {
			return nil, fmt.Errorf("kinds.functions: %q is not a value of %q", name, k.field)
		}
		k.rules.add(kind, functions)
	}
	k.all = tune.On(gadgetCtx, metadata.GetString("param"))
	if name := metadata.GetString("others.map"); name != "" && !k.all {
		at, err := unwinder.Member(value, metadata.GetString("others.address"), 8)
		if err != nil {
			return nil, fmt.Errorf("kinds.others.address: %w", err)
		}
		k.others = &kindOthers{name: name, at: at}
	}
	return k, nil
}

// start finds the gadget's map. The gadget must be loaded.
func (k *kinds) start(gadgetCtx operators.GadgetContext) error {
	if k == nil || k.others == nil {
		return nil
	}
	maps, err := tune.Maps(gadgetCtx, Name, k.others.name)
	k.others.m = maps[k.others.name]
	return err
}

// valuesOf returns an enum's values by their names in lower case. The enum is the type of a member of a map's key.
func valuesOf(key *btf.Struct, field string) (map[string]uint32, error) {
	for _, m := range key.Members {
		enum, ok := btf.UnderlyingType(m.Type).(*btf.Enum)
		if m.Name != field || !ok || enum.Size != 4 {
			continue
		}
		values := map[string]uint32{}
		for _, v := range enum.Values {
			values[strings.ToLower(v.Name)] = uint32(v.Value)
		}
		return values, nil
	}
	return nil, fmt.Errorf("%s has no enum member %q", key.Name, field)
}

// refines reports whether the bytes start with the kind to refine.
func (k *kinds) refines(kind []byte) bool { return order.Uint32(kind) == k.of }

// refine sets the kind to the kind of the innermost function that has one. keep is false if the kind stays unchanged and such
// rows are not wanted. decided is true if a function decided the result.
func (k *kinds) refine(kind []byte, frames []frame) (keep, decided bool) {
	for i := range frames[:min(len(frames), kindFrames)] {
		if n, ok := k.rules.kindOf(frames[i].name); ok {
			order.PutUint32(kind, n)
			return n != k.of || k.all, true
		}
	}
	return k.all, false
}

// leaveOut makes the gadget's programs stop sending a row's events for some time.
func (o *kindOthers) leaveOut(r *record) {
	if o == nil || o.m == nil {
		return
	}
	if address := order.Uint64(r.value[o.at:]); address != 0 {
		// If Put fails, the programs continue to send the events.
		_ = o.m.Put(addressKey{Address: address, PID: r.process().PID}, r.time())
	}
}

// kindRules maps functions to kinds.
type kindRules struct {
	exact    map[string]uint32
	patterns []kindPattern
	known    map[string]int64 // cache by symbol name; -1: no kind
}

type kindPattern struct {
	parts []string // the name, split at each *
	kind  uint32
}

func (r *kindRules) add(kind uint32, functions []string) {
	if r.exact == nil {
		r.exact, r.known = map[string]uint32{}, map[string]int64{}
	}
	for _, f := range functions {
		if parts := strings.Split(f, "*"); len(parts) > 1 {
			r.patterns = append(r.patterns, kindPattern{parts, kind})
		} else {
			r.exact[f] = kind
		}
	}
	// Sort, because iterating over a map has no fixed order.
	slices.SortFunc(r.patterns, func(a, b kindPattern) int { return slices.Compare(a.parts, b.parts) })
}

// kindOf returns a function's kind by its symbol name, or false if the function has no kind.
func (r *kindRules) kindOf(symbol string) (uint32, bool) {
	if symbol == "" {
		return 0, false
	}
	kind, ok := r.known[symbol]
	if !ok {
		kind = -1
		if n, ok := r.look(readable(symbol)); ok {
			kind = int64(n)
		}
		if len(r.known) >= mostNames {
			clear(r.known)
		}
		r.known[symbol] = kind
	}
	return uint32(max(kind, 0)), kind >= 0
}

func (r *kindRules) look(name string) (uint32, bool) {
	if kind, ok := r.exact[name]; ok {
		return kind, true
	}
	for _, p := range r.patterns {
		if p.matches(name) {
			return p.kind, true
		}
	}
	return 0, false
}

func (p *kindPattern) matches(name string) bool {
	last := len(p.parts) - 1
	rest, ok := strings.CutPrefix(name, p.parts[0])
	if !ok {
		return false
	}
	for _, part := range p.parts[1:last] {
		if _, rest, ok = strings.Cut(rest, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(rest, p.parts[last])
}

// readable returns a function's demangled name, without a symbol version (name@@GLIBC_2.34) and without glibc's prefix for
// internal aliases (__GI_name).
func readable(symbol string) string {
	name, _, _ := strings.Cut(readables.Demangle(symbol), "@")
	return strings.TrimPrefix(name, "__GI_")
}
