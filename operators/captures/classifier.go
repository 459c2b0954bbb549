package captures

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
	"github.com/spf13/viper"
)

// frame holds the parts of a frame that the classification needs: a key for the file (nil if unknown), and the symbol name.
type frame struct {
	file any
	name string
}

// verdict is the result of classifying a capture.
type verdict uint8

const (
	kept  verdict = iota
	inner         // the caller's capture counts instead
	other         // the gadget does not show this kind
)

// classifier classifies captures by the innermost functions of their stacks.
type classifier struct {
	inner []string
	kinds *kinds // nil: the gadget does not refine kinds
}

// mostInner limits the number of functions in the list inner of the metadata.
const mostInner = 256

// newClassifier reads the gadget's metadata. key and value are the types of the map rows.
func newClassifier(gadgetCtx operators.GadgetContext, metadata *viper.Viper, key, value *btf.Struct) (classifier, error) {
	j := classifier{inner: metadata.GetStringSlice("inner")}
	if len(j.inner) > mostInner {
		return j, fmt.Errorf("inner: %d functions, more than the limit of %d", len(j.inner), mostInner)
	}
	if !metadata.IsSet("kinds") {
		return j, nil
	}
	section := metadata.Sub("kinds")
	if section == nil {
		return j, errors.New("kinds: expected a non-empty map")
	}
	var err error
	j.kinds, err = newKinds(gadgetCtx, section, key, value)
	return j, err
}

// field returns the name of the key's member that holds the kind, or "" if there is none.
func (j *classifier) field() string {
	if j.kinds == nil {
		return ""
	}
	return j.kinds.field
}

// wantsNames reports whether the classification needs function names.
func (j *classifier) wantsNames(r *record, l *layout) bool {
	return len(j.inner) > 0 || j.kinds != nil && j.kinds.refines(r.key[l.kind:])
}

// classify returns the verdict for a capture. It can change the kind in the record's key.
func (j *classifier) classify(r *record, l *layout, frames []frame) verdict {
	if len(j.inner) > 0 && len(frames) > 1 && frames[0].file != nil && frames[0].file == frames[1].file && j.isInner(plain(frames[1].name)) {
		return inner
	}
	if j.kinds == nil || !j.kinds.refines(r.key[l.kind:]) {
		return kept
	}
	keep, told := j.kinds.refine(r.key[l.kind:], frames)
	if keep {
		return kept
	}
	if told {
		j.kinds.others.leaveOut(r)
	}
	return other
}

func (j *classifier) isInner(name string) bool {
	return slices.ContainsFunc(j.inner, func(f string) bool {
		before, open := strings.CutSuffix(f, "*")
		return name == f || open && strings.HasPrefix(name, before)
	})
}

// plain returns the public name for a C library's internal name. For __libc_calloc and for calloc@@GLIBC_2.2.5, this is calloc.
func plain(name string) string {
	name, _, _ = strings.Cut(name, "@")
	return strings.TrimPrefix(strings.TrimPrefix(name, "__libc_"), "__")
}
