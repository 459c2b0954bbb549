package report

import (
	"cmp"
	"slices"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

const (
	// maxFlameNodes bounds the page: beyond it the smallest nodes are left out.
	maxFlameNodes = 50_000
	// maxFlameDepth bounds how deep a graph is drawn; frames beyond it count for the last one.
	maxFlameDepth = 512
	// maxFlameName bounds a name's runes.
	maxFlameName = 512
	// flameTime is the unit of values that measure time.
	flameTime = "µs"
)

// flameNode is one box of the graph.
type flameNode struct {
	parent      int
	name, kind  string
	total, self int64
	children    map[flameKey]int
	kept        int
}

type flameKey struct{ name, kind string }

type flameData struct {
	Title string
	Unit  string
	Names []string
	// Nodes are [parent, name, type, total, self]; a parent comes before its children.
	Nodes [][5]int64
	// Left is the number of nodes that were left out.
	Left int
}

// flame builds the tree. Values are microseconds where the samples measure time, so that they stay
// whole numbers that a script can hold.
func flame(title string, samples []receiver.Sample) flameData {
	nodes := []*flameNode{{name: "all", parent: -1, children: map[flameKey]int{}}}
	child := func(parent int, name, kind string) int {
		k := flameKey{name, kind}
		i, ok := nodes[parent].children[k]
		if !ok {
			i = len(nodes)
			nodes = append(nodes, &flameNode{parent: parent, name: name, kind: kind, children: map[flameKey]int{}})
			nodes[parent].children[k] = i
		}
		return i
	}
	data := flameData{Title: title}
	for _, s := range samples {
		value := s.Total()
		data.Unit = s.Unit
		if seconds, ok := s.Seconds(); ok {
			value, data.Unit = int64(seconds*1e6), flameTime
		}
		if value <= 0 {
			continue
		}
		service := s.Service
		if service == "" {
			service = "[no service]"
		}
		nodes[0].total += value
		at := child(0, service, "service")
		nodes[at].total += value
		if program := Program(s); !InContainer(s) && program != s.Service {
			at = child(at, program, "program")
			nodes[at].total += value
		}
		for i := len(s.Stack) - 1; i >= max(0, len(s.Stack)-maxFlameDepth); i-- {
			at = child(at, flameName(s.Stack[i].Label()), s.Stack[i].Type)
			nodes[at].total += value
		}
		nodes[at].self += value
	}
	least := int64(1)
	if len(nodes) > maxFlameNodes {
		totals := make([]int64, len(nodes))
		for i, n := range nodes {
			totals[i] = n.total
		}
		slices.SortFunc(totals, func(a, b int64) int { return cmp.Compare(b, a) })
		least = totals[maxFlameNodes] + 1
	}
	names := map[string]int{}
	name := func(s string) int64 {
		i, ok := names[s]
		if !ok {
			i = len(data.Names)
			names[s] = i
			data.Names = append(data.Names, s)
		}
		return int64(i)
	}
	data.Nodes = [][5]int64{}
	for i, n := range nodes {
		n.kept = -1
		if i > 0 && (n.total < least || nodes[n.parent].kept < 0) {
			data.Left++
			continue
		}
		n.kept = len(data.Nodes)
		parent := int64(-1)
		if i > 0 {
			parent = int64(nodes[n.parent].kept)
		}
		data.Nodes = append(data.Nodes, [5]int64{parent, name(n.name), name(n.kind), n.total, n.self})
	}
	return data
}

func flameName(s string) string {
	if r := []rune(s); len(r) > maxFlameName {
		return string(r[:maxFlameName-1]) + "…"
	}
	return s
}
