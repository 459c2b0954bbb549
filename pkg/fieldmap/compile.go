package fieldmap

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	ebpftypes "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ebpf/types"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

type compiler struct {
	ds     datasource.DataSource
	o      Options
	ann    map[string]string
	fields []datasource.FieldAccessor // without unreferenced fields
	byName map[string]datasource.FieldAccessor
	nested bool // rows hold their process in a struct
	ours   bool // IG added the fields k8s.* and runtime.*, not the gadget's image
	plan   *Plan
}

// Compile creates a data source's Plan from its annotations and fields. Call it at PreStart, when all operators have added
// their fields. The error is ErrNoStack if the data source has no stack. Any other error names the data source and the remedy.
// Compile ignores an invalid annotation that is not needed, and logs a warning.
func Compile(ds datasource.DataSource, o Options) (*Plan, error) {
	c := &compiler{ds: ds, o: o, ann: ds.Annotations(), byName: map[string]datasource.FieldAccessor{}}
	for _, acc := range ds.Accessors(false) {
		if datasource.FieldFlagUnreferenced.In(acc.Flags()) {
			continue
		}
		c.fields = append(c.fields, acc)
		if _, ok := c.byName[acc.FullName()]; !ok {
			c.byName[acc.FullName()] = acc
		}
	}
	// IG enriches data sources that have a namespace field. It would fail if fields with these names already existed. In any
	// other data source, such fields come from the image and do not identify a workload.
	c.ours = len(ds.GetFieldsWithTag("type:"+ebpftypes.MntNsTypeName, "type:"+ebpftypes.NetNsTypeName)) > 0

	c.findNested()
	p := &Plan{seed: maphash.MakeSeed(), k1: rand.Uint64(), k2: rand.Uint64(), k3: rand.Uint64()}
	p.stackReader = p
	e := &c.o.Exporter
	p.settings.namer, p.settings.FileForm, p.settings.raw = c.o.Names, FileForm{e.ProcMappings, e.OffsetAddresses}, e.RawAddresses
	c.plan = p
	if err := c.stack(); err != nil {
		return nil, err
	}
	c.share()
	if o.First == nil {
		c.unknownAnnotations()
	}
	if err := c.values(); err != nil {
		return nil, err
	}
	c.settings()
	c.describe()
	c.identity()
	c.hosts()
	c.attributes()
	c.labelKeys()
	c.links()
	c.time()
	return p, nil
}

// share makes the Plan use the stacks and stack keys of Options.First. So both are computed once for all exporters of a data
// source. A field that distinguishes stacks for this Plan only becomes part of the row key instead.
func (c *compiler) share() {
	p, first := c.plan, c.o.First
	if first == nil {
		return
	}
	p.seed, p.k1, p.k2, p.k3 = first.seed, first.k1, first.k2, first.k3
	for _, r := range p.stackKeyFields {
		if !slices.ContainsFunc(first.stackKeyFields, r.same) {
			p.sampleKeyFields = append(p.sampleKeyFields, r)
		}
	}
	p.stackKeyFields = first.stackKeyFields
	if first.rawKernel == p.rawKernel { // otherwise the two export different addresses of kernel frames
		p.stackReader = first
	}
}

func (c *compiler) warnf(format string, args ...any) {
	if c.o.Logger != nil {
		c.o.Logger.Warnf("otel-profiles: data source %q: %s", c.ds.Name(), fmt.Sprintf(format, args...))
	}
}

func (c *compiler) debugf(format string, args ...any) {
	if c.o.Logger != nil {
		c.o.Logger.Debugf("otel-profiles: data source %q: %s", c.ds.Name(), fmt.Sprintf(format, args...))
	}
}

// field finds a field by its name. Without an exact match it ignores case, as IG does.
func (c *compiler) field(name string) datasource.FieldAccessor {
	if acc, ok := c.byName[name]; ok {
		return acc
	}
	for _, acc := range c.fields {
		if strings.EqualFold(acc.FullName(), name) {
			return acc
		}
	}
	return nil
}

// missing returns the error for an annotated field that the data source does not have.
func (c *compiler) missing(annotation, name string) error {
	const most = 40
	var names []string
	for _, acc := range c.fields {
		if acc.Type() != api.Kind_Invalid {
			names = append(names, plainName(acc.FullName()))
		}
	}
	more := ""
	if len(names) > most {
		more = fmt.Sprintf(" and %d more", len(names)-most)
		names = names[:most]
	}
	return fmt.Errorf("data source %q: %s names the field %q, which does not exist; the fields are %s%s",
		c.ds.Name(), annotation, clipName(name), strings.Join(names, ", "), more)
}

// plainName returns the name of a field for messages. It quotes an unusual name.
func plainName(name string) string {
	if checkName(name) != nil {
		return strconv.Quote(clipName(name))
	}
	return name
}

// clipName shortens a text from an image for messages.
func clipName(s string) string {
	if len(s) > maxNameBytes {
		return strings.ToValidUTF8(s[:maxNameBytes], "") + "…"
	}
	return s
}

// values finds the fields that hold the values of a row.
func (c *compiler) values() error {
	for _, name := range SplitList(c.ann[annValueField]) {
		acc := c.field(name)
		if acc == nil {
			return c.missing(annValueField, name)
		}
		v := valueReader{read: newReader(c.ds, acc)}
		i := len(c.plan.values)
		switch acc.Type() {
		case api.Kind_Int8, api.Kind_Int16, api.Kind_Int32, api.Kind_Int64,
			api.Kind_Uint8, api.Kind_Uint16, api.Kind_Uint32, api.Kind_Uint64:
		case api.Kind_Float32, api.Kind_Float64:
			unit := c.unit(at(splitPositions(c.ann[annUnit]), i))
			scale, ok := nanoseconds[unit]
			if !ok {
				return fmt.Errorf("data source %q: the value field %q is a floating-point number with the unit %q, so its fraction would be lost: "+
					"use an integer field, or set a unit of time (seconds, milliseconds, microseconds, nanoseconds) in %s, because times are exported in nanoseconds",
					c.ds.Name(), acc.FullName(), clipName(unit), annUnit)
			}
			v.scale = scale
		default:
			return fmt.Errorf("data source %q: the value field %q is not a number: name an integer field in %s",
				c.ds.Name(), acc.FullName(), annValueField)
		}
		c.plan.values = append(c.plan.values, v)
	}
	return nil
}

// nanoseconds maps the valid units of a floating-point value to their lengths in nanoseconds.
var nanoseconds = map[string]float64{
	"seconds": 1e9, "milliseconds": 1e6, "microseconds": 1e3, "nanoseconds": 1,
}

// splitPositions splits a comma-separated list by position, so it keeps empty entries.
func splitPositions(s string) []string {
	if strings.TrimSpace(s) == "" {
		return nil
	}
	list := strings.Split(s, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}

func at(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return ""
}

// settings copies the exporter's settings into the Plan.
func (c *compiler) settings() {
	p, e := c.plan, &c.o.Exporter
	p.exporter, p.host = *e, c.o.Host
	p.podLabels = slices.Compact(slices.Sorted(slices.Values(e.PodLabels)))
	p.fixed = map[string]profile.Value{}
	meant := c.labelled()
	for _, kv := range e.Resource {
		v, ok := textValue(kv.Value)
		if !ok || kv.Key == "" {
			continue
		}
		key := meant(kv.Key)
		if _, ok := p.fixed[key]; !ok {
			p.fixedKeys = append(p.fixedKeys, key)
		}
		p.fixed[key] = v
	}
	p.placement = map[string]place{}
	for key, where := range placements(e.Attributes) {
		if _, exact := p.placement[meant(key)]; !exact || key == meant(key) {
			p.placement[meant(key)] = where
		}
	}
	p.maxResource, p.maxSample = e.MaxResourceAttributes, e.MaxSampleAttributes
	if p.maxResource == 0 {
		p.maxResource, p.maxSample = maxResourceAttributes, maxSampleAttributes
	}
}

// links finds the fields with a trace and a span ID.
func (c *compiler) links() {
	p := c.plan
	for _, q := range []struct {
		annotation string
		dst        *reader
	}{{annTraceID, &p.traceID}, {annSpanID, &p.spanID}} {
		for _, acc := range c.fields {
			if !isTrue(acc.Annotations()[q.annotation]) {
				continue
			}
			if q.dst.acc != nil {
				c.warnf("the annotation %s of the field %q is ignored: another field also has it", q.annotation, acc.FullName())
				continue
			}
			*q.dst = newReader(c.ds, acc)
			q.dst.cut = false // an ID may hold zeros
		}
	}
	switch {
	case p.traceID.acc != nil && p.spanID.acc != nil:
		p.sampleKeyFields = append(p.sampleKeyFields, p.traceID, p.spanID)
	case p.traceID.acc != nil || p.spanID.acc != nil:
		c.warnf("samples have no link to a span: this needs a field with %s and a field with %s", annTraceID, annSpanID)
		p.traceID, p.spanID = reader{}, reader{}
	}
}

// time finds the field with the time of an event: the annotated field, or else the first field of IG's timestamp type.
func (c *compiler) time() {
	raw := c.ds.GetFieldsWithTag("type:" + ebpftypes.TimestampTypeName)
	var found datasource.FieldAccessor
	for _, acc := range c.fields {
		if !isTrue(acc.Annotations()[annTimestamp]) {
			continue
		}
		if acc.Type() == api.Kind_String { // IG formats this text from a number: use the number
			for _, r := range raw {
				if acc.FullName() == targetName(r, "formatters.timestamp.target") {
					acc = r
					break
				}
			}
		}
		if k := acc.Type(); k != api.Kind_Uint64 && k != api.Kind_Int64 {
			c.warnf("the annotation %s of the field %q is ignored: a time must be a 64-bit number of nanoseconds", annTimestamp, acc.FullName())
			continue
		}
		found = acc
		break
	}
	if found == nil && c.plan.desc.Timestamps {
		for _, r := range raw {
			if r.Type() == api.Kind_Uint64 {
				found = r
				break
			}
		}
	}
	if found == nil {
		if c.plan.desc.Timestamps {
			c.warnf("%s is set, but no field contains a time: each timestamp is the time at which the operator reads the row", annTimestamps)
		}
		return
	}
	c.plan.timestamp = newReader(c.ds, found)
	c.plan.bootOffset = uint64(time.Now().UnixNano()) - procfs.SinceBoot()
}

// targetName returns the full name of the field that IG formats from a raw field. An annotation can set the name. The default
// is the raw name without _raw, below the same parent.
func targetName(raw datasource.FieldAccessor, annotation string) string {
	name, ok := raw.Annotations()[annotation]
	if !ok {
		if name, ok = strings.CutSuffix(raw.Name(), "_raw"); !ok {
			return ""
		}
	}
	if parent := raw.Parent(); parent != nil {
		return parent.FullName() + "." + name
	}
	return name
}
