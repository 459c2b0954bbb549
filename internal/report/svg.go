package report

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"hash/fnv"
	"io"
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
	// svgSmallest is the narrowest box that is drawn: a picture for a document stays small.
	svgSmallest = 2
	svgMaxDepth = 64
)

// WriteFlameSVG writes a flame graph of samples, which should be of one type, as a picture without a script for documents.
// Services are at the top, and functions below them, outermost first. Outside containers, programs come between. A box's amount
// and share appear when the mouse rests on it.
func WriteFlameSVG(w io.Writer, title string, samples []receiver.Sample) error {
	d := flame(title, samples)
	children := make([][]int, len(d.Nodes))
	for i, n := range d.Nodes {
		if n[0] >= 0 {
			children[n[0]] = append(children[n[0]], i)
		}
	}
	for _, c := range children {
		slices.SortFunc(c, func(a, b int) int {
			return cmp.Or(cmp.Compare(d.Nodes[b][3], d.Nodes[a][3]), cmp.Compare(d.Names[d.Nodes[a][1]], d.Names[d.Nodes[b][1]]))
		})
	}
	var boxes strings.Builder
	all := d.Nodes[0][3]
	deepest := 0
	// A stack instead of recursion: the depth comes from the samples.
	type place struct {
		node, depth int
		x, width    float64
	}
	for work := []place{{0, 0, 0, svgWidth}}; len(work) > 0; {
		p := work[len(work)-1]
		work = work[:len(work)-1]
		n := d.Nodes[p.node]
		deepest = max(deepest, p.depth)
		svgBox(&boxes, p.x, float64(svgHead+p.depth*svgRow), p.width, d.Names[n[1]], d.Names[n[2]], amount(n[3], d.Unit, all))
		x := p.x
		for _, c := range children[p.node] {
			width := p.width * float64(d.Nodes[c][3]) / float64(n[3])
			if width >= svgSmallest && p.depth+1 < svgMaxDepth {
				work = append(work, place{c, p.depth + 1, x, width})
			}
			x += width
		}
	}
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

// amount tells a value with its share of all.
func amount(value int64, unit string, all int64) string {
	share := 0.0
	if all != 0 {
		share = 100 * float64(value) / float64(all)
	}
	if unit == flameTime {
		return fmt.Sprintf("%.3f s, %.1f %%", float64(value)/1e6, share)
	}
	return fmt.Sprintf("%d %s, %.1f %%", value, unit, share)
}

// escape makes text safe within XML; characters that XML cannot hold are replaced.
func escape(s string) string {
	var b strings.Builder
	// A strings.Builder takes everything.
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}
