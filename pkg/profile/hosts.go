package profile

import (
	"cmp"
	"slices"
)

// HostOwner is the owner of messages that carry only resources outside containers.
const HostOwner = 1

// keepService is the time for which an unseen service outside containers keeps its name, in nanoseconds.
const keepService = uint64(3600e9)

// hostServices chooses the services outside containers that keep their names.
type hostServices struct {
	seen map[uint64]uint64 // by group: the end of the last window that it was in, in nanoseconds
}

// namedFactor limits the named services within keepService, as a multiple of those of one window.
const namedFactor = 4

// fold keeps services outside containers as they are, and makes one resource of all others. Services that were seen within
// keepService keep their name, so that a build's hundred programs do not push out a database. If fewer than most of a window's
// services have a name, the largest new ones get one. So a finished build does not keep a database out. namedFactor bounds all of
// them.
// Samples that have become equal are added up.
func (h *hostServices) fold(v *view, w *window, cfg *Config, stride int, end uint64) {
	most := cfg.HostServices
	values := map[uint64]float64{}
	rest := int32(-1) // the resource of processes without a service
	for _, id := range w.touched {
		r := &v.resources[v.samples[id].resource]
		switch {
		case !r.host:
		case r.group == 0:
			rest = int32(v.samples[id].resource)
		default:
			for _, n := range w.acc[int(id)*stride+1 : (int(id)+1)*stride] {
				values[r.group] += float64(n)
			}
		}
	}
	if len(values) == 0 {
		return
	}
	for group, last := range h.seen {
		if last+keepService < end {
			delete(h.seen, group)
		}
	}
	if h.seen == nil {
		h.seen = map[uint64]uint64{}
	}
	var fresh []uint64
	for group := range values {
		if _, ok := h.seen[group]; ok {
			h.seen[group] = end
		} else {
			fresh = append(fresh, group)
		}
	}
	slices.SortFunc(fresh, func(a, b uint64) int {
		return cmp.Or(cmp.Compare(values[b], values[a]), cmp.Compare(a, b))
	})
	named := len(values) - len(fresh)
	room := min(max(min(most-named, namedFactor*most-len(h.seen)), 0), len(fresh))
	for _, group := range fresh[:room] {
		h.seen[group] = end
	}
	if room == len(fresh) {
		return
	}

	type identity struct{ stack, attrs, link uint32 }
	merged := map[identity]uint32{}
	samples := v.samples
	v.samples = make([]sample, len(samples))
	for _, id := range w.touched {
		s := &v.samples[id]
		*s = samples[id] // and no other: entries that the window does not have may be in use again
		r := &v.resources[s.resource]
		if !r.host {
			continue
		}
		if _, own := h.seen[r.group]; own && r.group != 0 {
			continue
		}
		if rest < 0 {
			rest = int32(len(v.resources))
			v.resources = append(v.resources, resource{key: HostOwner, attrs: r.rest, dropped: r.dropped, host: true})
		}
		s.resource = uint32(rest)
		first, ok := merged[identity{s.stack, s.attrs, s.link}]
		if !ok {
			merged[identity{s.stack, s.attrs, s.link}] = id
			continue
		}
		w.merge(first, id, stride, cfg.Shape, false)
	}
}
