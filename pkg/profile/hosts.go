package profile

import (
	"cmp"
	"slices"
)

// HostOwner is the owner of messages that only contain resources outside containers.
const HostOwner = 1

// keepService is how long a service outside containers keeps its name after it was last seen, in nanoseconds.
const keepService = uint64(3600e9)

// hostServices selects which services outside containers keep their names.
type hostServices struct {
	seen map[uint64]uint64 // by group: the end of the last window that contained it, in nanoseconds
}

// namedFactor limits the named services within keepService. It is a multiple of the limit for one window.
const namedFactor = 4

// fold merges services outside containers into one resource, except services that keep their names. A service that was seen
// within keepService keeps its name. So a build with a hundred programs does not displace a database. If places are free, the window's
// largest new services get them. So a finished build does not displace a database. namedFactor limits the named services. fold
// adds up samples that become equal.
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
		*s = samples[id] // only this one, because samples that are not in the window may be reused concurrently
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
