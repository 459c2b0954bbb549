package report

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// Sizes of WriteFlameSVG in pixels.
const (
	svgWidth     = 1200
	svgRow       = 17
	svgHead      = 26
	svgCharacter = 6.2
	// svgSmallest is the smallest width of a drawn box. It keeps a document's picture small.
	svgSmallest = 2
	svgMaxDepth = 64
)

// flameTime is the unit of values that measure time.
const flameTime = "µs"

// flameNode is a function below its callers.
type flameNode struct {
	flameKey
	value    int64
	children map[flameKey]*flameNode
}

type flameKey struct{ name, kind string }

// below adds a value to a child, and returns the child.
func (n *flameNode) below(name, kind string, value int64) *flameNode {
	k := flameKey{name, kind}
	child := n.children[k]
	if child == nil {
		child = &flameNode{flameKey: k, children: map[flameKey]*flameNode{}}
		n.children[k] = child
	}
	child.value += value
	return child
}

// flame builds the part of the sample tree that is drawn, and returns the unit of its values.
func flame(samples []receiver.Sample) (root *flameNode, unit string) {
	root = &flameNode{flameKey: flameKey{name: "all"}, children: map[flameKey]*flameNode{}}
	for _, s := range samples {
		value := s.Total()
		unit = s.Unit
		if seconds, ok := s.Seconds(); ok {
			value, unit = int64(seconds*1e6), flameTime
		}
		if value <= 0 {
			continue
		}
		root.value += value
		at := root.below(cmp.Or(s.Service, "[no service]"), "service", value)
		if program := Program(s); !InContainer(s) && program != s.Service {
			at = at.below(program, "program", value)
		}
		for i := len(s.Stack) - 1; i >= max(0, len(s.Stack)-svgMaxDepth); i-- {
			at = at.below(s.Stack[i].Label(), s.Stack[i].Type, value)
		}
	}
	return root, unit
}

// WriteFlameSVG writes a flame graph of samples, as an SVG without a script for documents. The samples should have one type.
// Services are at the top, and functions below them, outermost first. Outside containers, programs come between. A box's amount
// and share appear when the mouse rests on it.
func WriteFlameSVG(w io.Writer, title string, samples []receiver.Sample) error {
	root, unit := flame(samples)
	var boxes strings.Builder
	deepest := 0
	var draw func(n *flameNode, depth int, x, width float64)
	draw = func(n *flameNode, depth int, x, width float64) {
		if width < svgSmallest || depth == svgMaxDepth {
			return
		}
		deepest = max(deepest, depth)
		svgBox(&boxes, x, float64(svgHead+depth*svgRow), width, n.name, n.kind, amount(n.value, unit, root.value))
		for _, c := range slices.SortedFunc(maps.Values(n.children), func(a, b *flameNode) int {
			return cmp.Or(cmp.Compare(b.value, a.value), cmp.Compare(a.name, b.name), cmp.Compare(a.kind, b.kind))
		}) {
			part := width * float64(c.value) / float64(n.value)
			draw(c, depth+1, x, part)
			x += part
		}
	}
	draw(root, 0, 0, svgWidth)
	height := svgHead + (deepest+1)*svgRow + 4
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="ui-monospace, monospace" font-size="10.5">
<rect width="100%%" height="100%%" fill="#fff"/>
<text x="4" y="17" font-size="13" font-family="system-ui, sans-serif" fill="#222">%s</text>
%s</svg>
`, svgWidth, height, svgWidth, height, escape(title), boxes.String())
	if err != nil {
		return fmt.Errorf("writing the flame graph: %w", err)
	}
	return nil
}

func svgBox(b *strings.Builder, x, y, width float64, name, kind, amount string) {
	hues := map[string]int{"service": 210, "program": 150, "kernel": 5, "native": 45, "go": 185}
	hue, known := hues[kind]
	saturation := 80
	if !known {
		saturation = 0
	}
	h := fnv.New32a()
	_, _ = io.WriteString(h, name) // a hash takes everything
	fmt.Fprintf(b, `<g><title>%s %s</title><rect x="%.1f" y="%.1f" width="%.1f" height="%d" fill="hsl(%d,%d%%,%d%%)"/>`,
		escape(name), escape(amount), x, y, max(width-0.5, 0.1), svgRow-1, hue, saturation, 72+h.Sum32()%14)
	if fits := int((width - 6) / svgCharacter); fits >= 3 {
		shown := []rune(name)
		if len(shown) > fits {
			shown = append(shown[:fits-1], '…')
		}
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" fill="#111">%s</text>`, x+3, y+svgRow-5, escape(string(shown)))
	}
	b.WriteString("</g>\n")
}

// amount writes a value with its share of all.
func amount(value int64, unit string, all int64) string {
	share := 100 * float64(value) / float64(max(all, 1))
	if unit == flameTime {
		return fmt.Sprintf("%.3f s, %.1f %%", float64(value)/1e6, share)
	}
	return fmt.Sprintf("%d %s, %.1f %%", value, unit, share)
}

// escape makes text safe within XML. It replaces characters that are invalid in XML.
func escape(s string) string {
	var b strings.Builder
	// A strings.Builder takes everything.
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}
