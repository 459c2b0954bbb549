package flamepage

import (
	"cmp"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/report"
)

const (
	// maxNodes bounds the page: beyond it the smallest frames are left out, and what was spent in them
	// counts for their callers.
	maxNodes = 50_000
	// maxDepth bounds how deep a stack is drawn; frames beyond it count for the last one.
	maxDepth = 512
	// maxName bounds a name's runes.
	maxName = 512
	// maxThreads bounds the names of threads that can be chosen; further ones share a name.
	maxThreads = 1000
)

// Kinds of frames beside those of profile.frame.type. The script knows them, too.
const (
	kindService = "service"
	kindProgram = "program"
	kindUnnamed = "no name"
)

// data is what the script reads.
type data struct {
	Title    string `json:"title"`
	Subtitle string `json:"subtitle"`
	// Unit is that of values divided by Scale, which makes them whole numbers.
	Unit  string `json:"unit"`
	Scale int64  `json:"scale"`
	// Sides are the names of what a sample's values are for.
	Sides    []string `json:"sides"`
	Services []string `json:"services"`
	Threads  []string `json:"threads"`
	Names    []string `json:"names"`
	Kinds    []string `json:"kinds"`
	Files    []string `json:"files"`
	// Nodes are frames as [parent, name, kind, file]; a parent comes before its children and is -1
	// for the outermost.
	Nodes [][4]int `json:"nodes"`
	// Samples are [service, thread, node, value of each side].
	Samples [][]int64 `json:"samples"`
	// Left is the number of frames that were left out.
	Left int `json:"left"`
}

// index gives names numbers in the order of their first use.
type index struct {
	numbers map[string]int
	names   []string
}

func newIndex() *index { return &index{numbers: map[string]int{}, names: []string{}} }

func (x *index) of(name string) int {
	i, known := x.numbers[name]
	if !known {
		i = len(x.names)
		x.numbers[name] = i
		x.names = append(x.names, name)
	}
	return i
}

type nodeKey struct{ parent, name, kind, file int }

// sampleKey holds what samples have in common that are added up.
type sampleKey struct{ service, thread, node int }

type builder struct {
	services, threads, names, kinds, files *index
	nodes                                  []nodeKey
	totals                                 []int64
	known                                  map[nodeKey]int
	values                                 map[sampleKey]*[2]int64
	order                                  []sampleKey
}

func newData(p Page) data {
	b := &builder{
		services: newIndex(), threads: newIndex(), names: newIndex(), kinds: newIndex(), files: newIndex(),
		known: map[nodeKey]int{}, values: map[sampleKey]*[2]int64{},
	}
	d := data{Title: p.Title, Subtitle: p.Subtitle, Unit: p.Unit, Scale: 1, Sides: []string{"all"}}
	if len(p.Sides) == 2 {
		d.Sides = []string{"before", "after"}
	}
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
			// Seconds, and what is scaled, keep six digits behind the point.
			if timed || scale != 1 {
				d.Scale = 1e6
			}
			b.add(side, sample, amount*scale)
		}
	}
	b.write(&d)
	return d
}

// add adds a sample. Values are held as whole millionths, as the sides' scales differ.
func (b *builder) add(side int, s receiver.Sample, amount float64) {
	value := math.Round(amount * 1e6)
	if !(value > 0) || value > 1<<53 {
		return
	}
	service := cmp.Or(s.Service, "[no service]")
	key := sampleKey{service: b.services.of(clip(service)), thread: b.thread(s)}
	at := b.node(-1, service, kindService, "")
	b.totals[at] += int64(value)
	if program := report.Program(s); !report.InContainer(s) && program != s.Service {
		at = b.node(at, program, kindProgram, "")
		b.totals[at] += int64(value)
	}
	for i := len(s.Stack) - 1; i >= max(0, len(s.Stack)-maxDepth); i-- {
		f := s.Stack[i]
		kind := f.Type
		if f.Name == "" {
			kind = kindUnnamed
		}
		at = b.node(at, f.Label(), kind, path.Base(cmp.Or(f.Mapping, f.File)))
		b.totals[at] += int64(value)
	}
	key.node = at
	sums := b.values[key]
	if sums == nil {
		sums = &[2]int64{}
		b.values[key] = sums
		b.order = append(b.order, key)
	}
	sums[side] += int64(value)
}

func (b *builder) thread(s receiver.Sample) int {
	name := clip(s.Attributes["thread.name"])
	if _, known := b.threads.numbers[name]; !known && len(b.threads.names) >= maxThreads {
		name = "[other threads]"
	}
	return b.threads.of(name)
}

func (b *builder) node(parent int, name, kind, file string) int {
	if file == "." {
		file = ""
	}
	k := nodeKey{parent, b.names.of(clip(name)), b.kinds.of(clip(kind)), b.files.of(clip(file))}
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
	names, kinds, files := newIndex(), newIndex(), newIndex()
	kept := make([]int, len(b.nodes))
	d.Nodes = [][4]int{}
	for i, n := range b.nodes {
		parent := -1
		if n.parent >= 0 {
			parent = kept[n.parent]
		}
		outermost := n.parent < 0
		if b.totals[i] < least && !outermost || !outermost && b.totals[n.parent] < least && b.nodes[n.parent].parent >= 0 {
			// What was spent here counts for the nearest frame that stays.
			kept[i] = parent
			d.Left++
			continue
		}
		kept[i] = len(d.Nodes)
		d.Nodes = append(d.Nodes, [4]int{parent, names.of(b.names.names[n.name]), kinds.of(b.kinds.names[n.kind]), files.of(b.files.names[n.file])})
	}
	divide := int64(1)
	if d.Scale == 1 {
		divide = 1e6
	}
	sums := map[sampleKey]int{}
	d.Samples = [][]int64{}
	for _, key := range b.order {
		value := b.values[key]
		key.node = kept[key.node]
		i, known := sums[key]
		if !known {
			i = len(d.Samples)
			sums[key] = i
			d.Samples = append(d.Samples, append([]int64{int64(key.service), int64(key.thread), int64(key.node)}, make([]int64, len(d.Sides))...))
		}
		for side := range d.Sides {
			d.Samples[i][3+side] += value[side] / divide
		}
	}
	d.Services, d.Threads = b.services.names, b.threads.names
	d.Names, d.Kinds, d.Files = names.names, kinds.names, files.names
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
