package report

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// The page's script and style. They come from this package; everything that comes from samples is
// data that the script only ever uses as text.
var (
	//go:embed flame.js
	flameScript string
	//go:embed flame.css
	flameStyle string
)

const (
	// maxFlameNodes bounds the page: beyond it the smallest nodes are left out.
	maxFlameNodes = 50_000
	// maxFlameDepth bounds how deep a graph is drawn; frames beyond it count for the last one.
	maxFlameDepth = 512
	// maxFlameName bounds a name's runes.
	maxFlameName = 512
	// flameTime is the unit of values that measure time. The script knows it, too.
	flameTime = "µs"
)

// flameNode is one box of the graph. The script gets nodes as arrays of
// [parent, name, type, total, self]; a parent comes before its children.
type flameNode struct {
	parent      int
	name, kind  string
	total, self int64
	children    map[flameKey]int
	kept        int
}

type flameKey struct{ name, kind string }

type flameData struct {
	Title string     `json:"title"`
	Unit  string     `json:"unit"`
	Names []string   `json:"names"`
	Nodes [][5]int64 `json:"nodes"`
	// Left is the number of nodes that were left out.
	Left int `json:"left"`
}

// WriteFlameGraph writes a page with a flame graph of samples, which should be of one type: the
// services at the top, below them their functions from the outermost to the leaf; outside containers
// the programs come between. The page is one file, loads nothing, and its policy forbids it to. Time
// is shown in seconds.
func WriteFlameGraph(w io.Writer, title string, samples []receiver.Sample) error {
	data, err := json.Marshal(flame(title, samples))
	if err != nil {
		return fmt.Errorf("writing the flame graph: %w", err)
	}
	hash := func(s string) string {
		sum := sha256.Sum256([]byte(s))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	policy := "default-src 'none'; script-src " + hash(flameScript) + "; style-src " + hash(flameStyle) + "; base-uri 'none'; form-action 'none'"
	// json.Marshal escapes <, > and &, so the data cannot end its element.
	_, err = io.WriteString(w, strings.Join([]string{
		"<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
		`<meta http-equiv="Content-Security-Policy" content="` + policy + `">`,
		`<meta name="viewport" content="width=device-width">`,
		"<title>" + html.EscapeString(title) + "</title>",
		"<style>" + flameStyle + "</style></head><body>",
		`<header><h1></h1><input id="search" type="search" placeholder="search functions" aria-label="search functions"><button id="reset" type="button">whole graph</button></header>`,
		`<p id="status" role="status"></p><main id="graph"></main>`,
		`<script type="application/json" id="data">` + string(data) + "</script>",
		"<script>" + flameScript + "</script></body></html>\n",
	}, "\n"))
	if err != nil {
		return fmt.Errorf("writing the flame graph: %w", err)
	}
	return nil
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
