package flamepage

import (
	"cmp"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

const (
	// maxNodes limits the page's size. Beyond it, the smallest frames are left out, and their values count for their callers.
	maxNodes = 50_000
	// maxDepth limits the depth to which a stack is drawn. Deeper frames count for the last one.
	maxDepth = 512
	// maxName limits the number of runes in a name.
	maxName = 512
	// maxThreads limits the thread names that a reader can choose. All further threads share one name.
	maxThreads = 1000
)

// These are frame kinds in addition to the values of profile.frame.type. The script also knows them.
const (
	kindService = "service"
	kindProgram = "program"
	kindUnnamed = "no name"
)

// data is the script's input.
type data struct {
	Title    string `json:"title"`
	Subtitle string `json:"subtitle"`
	// Unit is the unit of the values after division by Scale. Scale makes the values whole numbers.
	Unit  string `json:"unit"`
	Scale int64  `json:"scale"`
	// Sides are the names of a sample's values.
	Sides    []string `json:"sides"`
	Services []string `json:"services"`
	Threads  []string `json:"threads"`
	Names    []string `json:"names"`
	Kinds    []string `json:"kinds"`
	Files    []string `json:"files"`
	// Places are source files and lines.
	Places []string `json:"places"`
	// Nodes are frames as [parent, name, kind, file, 1 for an interpreter's own, most frequent place]. A parent comes before its
	// children. The outermost frames have the parent -1.
	Nodes [][6]int `json:"nodes"`
	// Samples are [service, thread, node, node of the program's own function, value of each side]. With Own, the own function's
	// node is -1 if there is none. Without Own, it equals the node.
	Samples [][]int64 `json:"samples"`
	// Period is the value of one sample, or 0 if the samples do not come from a timer.
	Period float64 `json:"period"`
	// Own adds the values of the program's own functions to the table.
	Own bool `json:"own"`
	// Folded initially hides the interpreters' own frames.
	Folded bool `json:"folded"`
	// Start is the start of the first time step, and Step is the length of each step, both in milliseconds. Times holds each
	// sample's step.
	Start int64 `json:"start,omitempty"`
	Step  int64 `json:"step,omitempty"`
	Steps int   `json:"steps,omitempty"`
	Times []int `json:"times,omitempty"`
	// Left is the number of omitted frames.
	Left int `json:"left"`
}

// index numbers names in the order of their first use.
type index struct {
	numbers map[string]int
	names   []string
	last    int // the latest result, which is often the next one
}

func newIndex() *index { return &index{numbers: map[string]int{}, names: []string{}} }

func (x *index) of(name string) int {
	if len(x.names) > 0 && x.names[x.last] == name {
		return x.last
	}
	i, known := x.numbers[name]
	if !known {
		i = len(x.names)
		x.numbers[name] = i
		x.names = append(x.names, name)
	}
	x.last = i
	return i
}

type nodeKey struct {
	parent, name, kind, file int
	// folded is 1 for an interpreter's own frame, else 0.
	folded int
}

// sampleKey identifies samples whose values are added up.
type sampleKey struct{ service, thread, node, own, step int32 }

// sampleSum is a sample or the sum of samples, for each side.
type sampleSum struct {
	key   sampleKey
	value [2]int64
}

// place is a source line of a node.
type place struct {
	node int
	file string
	line int64
}

func (p place) String() string {
	if p.line == 0 {
		return p.file
	}
	return p.file + ":" + strconv.FormatInt(p.line, 10)
}

type builder struct {
	services, threads, names, kinds, files *index
	nodes                                  []nodeKey
	totals                                 []int64
	places                                 map[place]int64
	known                                  map[nodeKey]int
	walks                                  map[walkKey]*walk
	walked                                 []*walk
	samples                                []sampleSum
	// start is the start of the first time step, and step is the length of each step. Without a timeline, step is 0.
	start time.Time
	step  time.Duration
	own   bool // the table shows the program's own functions
}

func newData(p Page) data {
	n := 0
	for _, s := range p.Sides {
		n += len(s.Samples)
	}
	b := &builder{
		services: newIndex(), threads: newIndex(), names: newIndex(), kinds: newIndex(), files: newIndex(),
		known: map[nodeKey]int{}, places: map[place]int64{}, walks: map[walkKey]*walk{}, samples: make([]sampleSum, 0, n), own: p.Own,
	}
	d := data{Title: p.Title, Subtitle: p.Subtitle, Unit: p.Unit, Scale: scaleOf(p.Sides), Sides: []string{"all"}, Own: p.Own, Folded: !p.Interpreters}
	if len(p.Sides) == 2 {
		d.Sides = []string{"before", "after"}
	}
	b.steps(&d, p)
	hasOwn := p.Own && slices.ContainsFunc(p.Sides, func(s Side) bool { return report.HasOwn(s.Samples) })
	for side, s := range p.Sides {
		scale := cmp.Or(s.Scale, 1)
		for _, sample := range s.Samples {
			unit, amount := cmp.Or(sample.Unit, "count"), float64(sample.Total())
			seconds, timed := sample.Seconds()
			if timed {
				unit, amount = "s", seconds
			}
			if unit == "count" {
				unit = strings.ReplaceAll(cmp.Or(sample.Type, unit), "_", " ")
			}
			d.Unit = cmp.Or(d.Unit, clip(unit))
			if timed && len(p.Sides) == 1 && sample.Unit == "count" {
				d.Period = float64(sample.Period) / 1e9 * scale
			}
			b.add(side, sample, amount*scale*float64(d.Scale), hasOwn)
		}
	}
	b.sum()
	b.write(&d)
	return d
}

// scaleOf returns the factor for the values: 1 for whole numbers, else the largest power of ten up to 1e6 for which the sums are
// exact in the script.
func scaleOf(sides []Side) int64 {
	whole, most := true, 0.0
	for _, s := range sides {
		sum := 0.0
		for _, sample := range s.Samples {
			_, timed := sample.Seconds()
			whole, sum = whole && !timed, sum+sample.Amount()
		}
		scale := cmp.Or(s.Scale, 1)
		whole, most = whole && scale == 1, max(most, sum*scale)
	}
	scale := int64(1)
	for !whole && scale < 1e6 && most*float64(10*scale) <= 1<<53 {
		scale *= 10
	}
	return scale
}

// maxSteps limits the number of time steps. A longer profile has longer steps.
const maxSteps = 200

// steps divides the timeline into steps.
func (b *builder) steps(d *data, p Page) {
	if p.Step <= 0 || len(p.Sides) != 1 || len(p.Sides[0].Samples) == 0 {
		return
	}
	first, last := p.Sides[0].Samples[0].Start, time.Time{}
	for _, s := range p.Sides[0].Samples {
		if s.Start.Before(first) {
			first = s.Start
		}
		if s.Start.After(last) {
			last = s.Start
		}
	}
	if !p.From.IsZero() {
		first = p.From.Add(first.Sub(p.From).Truncate(p.Step))
	}
	b.start, b.step = first, max(p.Step, time.Millisecond)
	for last.Sub(first)/b.step >= maxSteps {
		b.step *= 2
	}
	d.Start, d.Step, d.Steps = first.UnixMilli(), b.step.Milliseconds(), int(last.Sub(first)/b.step)+1
}

// add adds a sample. hasOwn reports whether the table shows the program's own functions and there are any. The script's numbers
// are exact up to 2^53.
func (b *builder) add(side int, s receiver.Sample, amount float64, hasOwn bool) {
	value := min(math.Round(amount), 1<<53)
	if !(value > 0) {
		return
	}
	service := cmp.Or(s.Service, "[no service]")
	sum := sampleSum{key: sampleKey{service: int32(b.services.of(clip(service))), thread: int32(b.thread(s))}}
	if b.step > 0 {
		sum.key.step = int32(s.Start.Sub(b.start) / b.step)
	}
	at := b.node(-1, service, kindService, "", false)
	b.totals[at] += int64(value)
	if program := report.Program(s); !report.InContainer(s) && program != s.Service {
		at = b.node(at, program, kindProgram, "", false)
		b.totals[at] += int64(value)
	}
	w := b.walk(at, s.Stack)
	w.value += int64(value)
	sum.key.node, sum.key.own = int32(w.node), int32(w.own)
	if hasOwn && !w.found && len(s.Stack) > 0 {
		sum.key.own = -1
	}
	sum.value[side] = int64(value)
	b.samples = append(b.samples, sum)
}

// walk is a stack below a node, with its innermost node and the node of its own function. All time steps share it.
type walk struct {
	stack     []receiver.Frame
	nodes     []int // of its frames, the outermost first
	node, own int
	found     bool
	value     int64
}

// walkKey identifies a stack below a node.
type walkKey struct {
	from  int
	stack receiver.Stack
}

// walk returns a stack below the node from, and adds the stack's nodes.
func (b *builder) walk(from int, stack []receiver.Frame) *walk {
	k := walkKey{from, receiver.StackOf(stack)}
	if w := b.walks[k]; w != nil {
		return w
	}
	w := &walk{stack: stack, node: from, own: from}
	b.walks[k], b.walked = w, append(b.walked, w)
	hidden := report.Interpreter(stack)
	own := 0
	if b.own {
		own, w.found = report.Own(stack)
	}
	for i := len(stack) - 1; i >= max(0, len(stack)-maxDepth); i-- {
		f := stack[i]
		kind := f.Type
		if f.Name == "" {
			kind = kindUnnamed
		}
		w.node = b.node(w.node, f.Label(), kind, path.Base(cmp.Or(f.Mapping, f.File)), hidden != nil && hidden[i])
		w.nodes = append(w.nodes, w.node)
		if i >= own {
			w.own = w.node
		}
	}
	return w
}

// sum adds the values of the stacks to their nodes and places.
func (b *builder) sum() {
	for _, w := range b.walked {
		for i, at := range w.nodes {
			b.totals[at] += w.value
			f := w.stack[len(w.stack)-1-i]
			if f.File != "" && !strings.HasPrefix(f.File, "<") {
				b.places[place{at, f.File, f.Line}] += w.value
			}
		}
	}
}

func (b *builder) thread(s receiver.Sample) int {
	name := clip(s.Attributes["thread.name"])
	if _, known := b.threads.numbers[name]; !known && len(b.threads.names) >= maxThreads {
		name = "[other threads]"
	}
	return b.threads.of(name)
}

func (b *builder) node(parent int, name, kind, file string, folded bool) int {
	if file == "." {
		file = ""
	}
	k := nodeKey{parent: parent, name: b.names.of(clip(name)), kind: b.kinds.of(clip(kind)), file: b.files.of(clip(file))}
	if folded {
		k.folded = 1
	}
	i, known := b.known[k]
	if !known {
		i = len(b.nodes)
		b.known[k] = i
		b.nodes = append(b.nodes, k)
		b.totals = append(b.totals, 0)
	}
	return i
}

// write fills in the tables, without the smallest nodes if there are too many.
func (b *builder) write(d *data) {
	least := int64(0)
	if len(b.nodes) > maxNodes {
		sorted := slices.Sorted(slices.Values(b.totals))
		least = sorted[len(sorted)-maxNodes-1] + 1
	}
	names, kinds, files, places, place := newIndex(), newIndex(), newIndex(), newIndex(), b.mostly()
	kept := make([]int32, len(b.nodes))
	d.Nodes = [][6]int{}
	for i, n := range b.nodes {
		parent := int32(-1)
		if n.parent >= 0 {
			parent = kept[n.parent]
		}
		outermost := n.parent < 0
		if b.totals[i] < least && !outermost || !outermost && b.totals[n.parent] < least && b.nodes[n.parent].parent >= 0 {
			// The nearest remaining frame gets its value.
			kept[i] = parent
			d.Left++
			continue
		}
		kept[i] = int32(len(d.Nodes))
		d.Nodes = append(d.Nodes, [6]int{int(parent), names.of(b.names.names[n.name]), kinds.of(b.kinds.names[n.kind]), files.of(b.files.names[n.file]), n.folded, places.of(clip(place[i].String()))})
	}
	sums, known := b.samples[:0], make(map[sampleKey]int, len(b.samples))
	for _, s := range b.samples {
		s.key.node = kept[s.key.node] // samples of omitted frames count for others
		if s.key.own >= 0 {
			s.key.own = kept[s.key.own]
		}
		i, added := known[s.key]
		if !added {
			known[s.key] = len(sums)
			sums = append(sums, s)
			continue
		}
		sums[i].value[0], sums[i].value[1] = sums[i].value[0]+s.value[0], sums[i].value[1]+s.value[1]
	}
	d.Samples = make([][]int64, len(sums))
	row := 4 + len(d.Sides)
	all := make([]int64, 0, row*len(sums)) // of all rows
	for i, s := range sums {
		all = append(all, int64(s.key.service), int64(s.key.thread), int64(s.key.node), int64(s.key.own))
		for side := range d.Sides {
			all = append(all, s.value[side])
		}
		d.Samples[i] = all[len(all)-row:]
		if b.step > 0 {
			d.Times = append(d.Times, int(s.key.step))
		}
	}
	d.Services, d.Threads = b.services.names, b.threads.names
	d.Names, d.Kinds, d.Files, d.Places = names.names, kinds.names, files.names, places.names
}

// mostly returns each node's place with the largest value. Among equal places, it returns the first by name.
func (b *builder) mostly() []place {
	out, most := make([]place, len(b.nodes)), make([]int64, len(b.nodes))
	for p, n := range b.places {
		if n > most[p.node] || n == most[p.node] && p.String() < out[p.node].String() {
			out[p.node], most[p.node] = p, n
		}
	}
	return out
}

func clip(s string) string {
	if len(s) <= maxName {
		return s
	}
	if r := []rune(s); len(r) > maxName {
		return string(r[:maxName-1]) + "…"
	}
	return s
}
