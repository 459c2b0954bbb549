package fieldmap

import (
	"fmt"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	ebpftypes "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ebpf/types"
	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// maxSampleAttributes is the limit where the settings have none, as in an Exporter that config.Load did not make.
const maxSampleAttributes = 32

// canonical maps fields of Inspektor Gadget (IG) to the attributes that the semantic conventions have for them.
var canonical = map[string]string{
	"proc.comm":       "thread.name",
	"proc.pid":        "process.pid",
	"proc.tid":        "thread.id",
	"proc.parent.pid": "process.parent_pid",
	"proc.creds.uid":  "process.user.id",
}

// identityKeys maps the fields that IG's enrichment adds to attributes, which the resource has anyway. Fields without
// an attribute are only used to work out other attributes.
var identityKeys = map[string]string{
	"k8s.namespace":                keyNamespace,
	"k8s.podName":                  keyPod,
	"k8s.containerName":            keyK8sContainer,
	"k8s.node":                     keyNode,
	"k8s.owner.kind":               "",
	"k8s.owner.name":               "",
	"k8s.podLabels":                "",
	"runtime.containerName":        keyContainerName,
	"runtime.containerId":          keyContainerID,
	"runtime.containerImageName":   keyImageName,
	"runtime.containerImageDigest": keyImageDigests,
	"runtime.runtimeName":          keyRuntimeName,
}

type compiler struct {
	ds     datasource.DataSource
	o      Options
	ann    map[string]string
	fields []datasource.FieldAccessor // without unreferenced ones
	byName map[string]datasource.FieldAccessor
	ours   bool // the fields k8s.* and runtime.* were added by IG and not by the gadget's image
	plan   *Plan
}

// Compile makes the Plan of a data source from its annotations and fields. Call it when all
// operators have added theirs: at PreStart. The error is ErrNoStack where the data source has
// nothing with a stack; any other error names the data source and what to change.
//
// An annotation that makes no sense but is not needed is ignored with a warning.
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
	// IG enriches the data sources that have a namespace to look up, and it would have failed on
	// fields of these names that are already there. On any other data source such fields are the
	// image's own and say nothing about who it watches.
	c.ours = len(ds.GetFieldsWithTag("type:"+ebpftypes.MntNsTypeName, "type:"+ebpftypes.NetNsTypeName)) > 0

	p := &Plan{seed: maphash.MakeSeed(), k1: rand.Uint64(), k2: rand.Uint64(), k3: rand.Uint64()}
	p.reads = p
	e := &c.o.Exporter
	p.settings.namer, p.settings.files, p.settings.offsets, p.settings.raw = c.o.Names, e.ProcMappings, e.OffsetAddresses, e.RawAddresses
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

// share makes the Plan use the stacks and the stack keys of Options.First, so that both are made once for all exporters
// of a data source. A field that makes a stack distinct for this Plan only goes into the key of its rows instead.
func (c *compiler) share() {
	p, first := c.plan, c.o.First
	if first == nil {
		return
	}
	p.seed, p.k1, p.k2, p.k3 = first.seed, first.k1, first.k2, first.k3
	for _, r := range p.stackRow {
		if !slices.ContainsFunc(first.stackRow, r.same) {
			p.row = append(p.row, r)
		}
	}
	p.stackRow = first.stackRow
	if first.rawKernel == p.rawKernel { // else the two want other addresses of kernel frames
		p.reads = first
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

// field finds a field by its name, without regard to case where none has exactly that name, as IG
// does.
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

// missing is the error for a field that an annotation names and the data source does not have.
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
	return fmt.Errorf("data source %q: %s names the field %q, which does not exist; it has %s%s",
		c.ds.Name(), annotation, clipName(name), strings.Join(names, ", "), more)
}

// plainName returns the name of a field for messages, quoted if it is an odd one.
func plainName(name string) string {
	if checkName(name) != nil {
		return strconv.Quote(clipName(name))
	}
	return name
}

// clipName shortens a text that comes from an image, for messages.
func clipName(s string) string {
	if len(s) > maxNameBytes {
		return strings.ToValidUTF8(s[:maxNameBytes], "") + "…"
	}
	return s
}

// values finds the fields with the values of a row.
func (c *compiler) values() error {
	for _, name := range splitList(c.ann[annValueField]) {
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
				return fmt.Errorf("data source %q: the value field %q is a floating-point number of %q and would lose its fraction; "+
					"use an integer field, or give it a unit of time in %s (seconds, milliseconds, microseconds, nanoseconds), which is exported in nanoseconds",
					c.ds.Name(), acc.FullName(), clipName(unit), annUnit)
			}
			v.scale = scale
		default:
			return fmt.Errorf("data source %q: the value field %q holds no number; name an integer field in %s",
				c.ds.Name(), acc.FullName(), annValueField)
		}
		c.plan.values = append(c.plan.values, v)
	}
	return nil
}

// nanoseconds are the units that a floating-point value may have, with the number of nanoseconds in each.
var nanoseconds = map[string]float64{
	"seconds": 1e9, "milliseconds": 1e6, "microseconds": 1e3, "nanoseconds": 1,
}

// splitPositions splits a comma list whose entries belong to positions: empty ones stay.
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
	p.host = c.o.Host
	p.service = e.ServiceName
	p.hostName = firstOf(e.HostServiceName, "host")
	p.serviceFromLabels = e.ServiceFromLabels
	p.imageDigest = e.ImageDigest
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
	p.hostID = e.HostID
	p.markIncomplete = e.MarkIncomplete
	p.maxResource, p.maxSample = e.MaxResourceAttributes, e.MaxSampleAttributes
	if p.maxResource == 0 {
		p.maxResource, p.maxSample = maxResourceAttributes, maxSampleAttributes
	}
}

// labelled returns a function that maps a key in the settings to the attribute that it means. With attribute_keys: label,
// attributes are exported under other names (see labelKey), and settings may use either name.
func (c *compiler) labelled() func(key string) string {
	if !c.o.Exporter.LabelKeys {
		return func(key string) string { return key }
	}
	known := slices.Clone(resourceKeys)
	for _, name := range c.plan.podLabels {
		known = append(known, podLabelPrefix+name)
	}
	known = slices.AppendSeq(known, maps.Values(canonical))
	for _, acc := range c.fields {
		known = append(known, acc.FullName())
		for _, annotation := range []string{annSampleAttribute, annResourceAttribute} {
			if a := parseAnswer(acc.Annotations(), annotation); a.name != "" {
				known = append(known, a.name)
			}
		}
	}
	byLabel, exact := map[string]string{}, map[string]bool{}
	for _, key := range known {
		exact[key] = true
		if _, ok := byLabel[label(labelKey(key))]; !ok {
			byLabel[label(labelKey(key))] = key
		}
	}
	return func(key string) string {
		if !exact[key] {
			if other, ok := byLabel[label(labelKey(key))]; ok {
				return other
			}
		}
		return key
	}
}

// labelKeys gives every attribute that a row can have its name as a label. All keys are known by now,
// so the names do not depend on rows.
func (c *compiler) labelKeys() {
	p := c.plan
	if !c.o.Exporter.LabelKeys {
		return
	}
	p.names = map[string]string{}
	keys := slices.Concat(resourceKeys, p.fixedKeys)
	for _, name := range p.podLabels {
		keys = append(keys, podLabelPrefix+name)
	}
	for _, list := range [][]attribute{p.resourceAttrs, p.sampleAttrs} {
		for _, a := range list {
			keys = append(keys, a.key)
		}
	}
	taken := map[string]bool{}
	for _, key := range keys {
		if _, ok := p.names[key]; ok {
			continue
		}
		base := labelKey(key)
		name := base
		for k := 2; taken[label(name)]; k++ {
			name = base + "_" + strconv.Itoa(k)
		}
		if name != base {
			c.warnf("the attribute %q is exported as %q: %q is the label of another one", clipName(key), clipName(name), clipName(base))
		}
		taken[label(name)] = true
		p.names[key] = name
	}
	for i := range p.sampleAttrs {
		p.sampleAttrs[i].key = p.name(p.sampleAttrs[i].key)
	}
}

// labelKey writes a key with letters, digits and _ only, as a label is written. A label does not begin
// with a digit. The service's name stays: receivers look for it, and make the label themselves.
func labelKey(key string) string {
	if key == keyServiceName {
		return key
	}
	b := make([]byte, 0, len(key)+1)
	for i := range len(key) {
		c := key[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_':
		case c >= '0' && c <= '9':
			if i == 0 {
				b = append(b, '_')
			}
		default:
			c = '_'
		}
		b = append(b, c)
	}
	return string(b)
}

func placements(settings []config.KeyValue) map[string]place {
	m := make(map[string]place, len(settings))
	for _, kv := range settings {
		switch kv.Value {
		case "resource":
			m[kv.Key] = onResource
		case "sample":
			m[kv.Key] = onSample
		case "both":
			m[kv.Key] = onBoth
		case "drop":
			m[kv.Key] = nowhere
		}
	}
	return m
}

// identity finds the fields that IG's enrichment adds.
func (c *compiler) identity() {
	p, id := c.plan, &c.plan.identity
	for name, r := range map[string]*reader{
		"k8s.namespace":                &id.namespace,
		"k8s.podName":                  &id.pod,
		"k8s.containerName":            &id.container,
		"k8s.node":                     &id.node,
		"k8s.owner.kind":               &id.ownerKind,
		"k8s.owner.name":               &id.ownerName,
		"k8s.podLabels":                &id.labels,
		"runtime.containerName":        &id.runtimeContainer,
		"runtime.containerId":          &id.containerID,
		"runtime.containerImageName":   &id.imageName,
		"runtime.containerImageDigest": &id.imageDigest,
		"runtime.runtimeName":          &id.runtimeName,
	} {
		if acc, ok := c.byName[name]; ok && c.isIdentity(acc) {
			*r = newReader(c.ds, acc)
		}
	}
	// What the settings say of the field counts for the attribute, too. Not so with CompatNames: there the two names are two
	// attributes of a sample.
	if !c.o.Exporter.CompatNames {
		for name, key := range identityKeys {
			if pl, ok := p.placement[name]; ok && key != "" {
				if _, ok := p.placement[key]; !ok {
					p.placement[key] = pl
				}
			}
		}
	}
	p.containerID = id.containerID
	for _, r := range []reader{id.namespace, id.pod, id.container, id.runtimeContainer} {
		if r.acc != nil {
			p.ids = append(p.ids, r)
		}
	}
}

// isIdentity tells whether a field is one that IG's enrichment has added, and not a member of the
// event struct of the gadget's program that has the same name.
func (c *compiler) isIdentity(acc datasource.FieldAccessor) bool {
	_, ok := identityKeys[acc.FullName()]
	return ok && c.ours && acc.Type() == api.Kind_String && !datasource.FieldFlagStaticMember.In(acc.Flags())
}

// attributes decides for each field whether it becomes an attribute, of what, and under which key:
// defaults first, then the image's annotations, then the settings.
func (c *compiler) attributes() {
	p := c.plan
	used := map[string]string{}
	for _, acc := range c.fields {
		key, where := c.attribute(acc)
		if where == nowhere {
			continue
		}
		if !attributeKind(acc.Type()) || acc.Type() == api.Kind_Bytes && len(acc.SubFields()) > 0 {
			c.warnf("the field %q is left out of the attributes: it is an array or a struct, and an attribute is one value", acc.FullName())
			continue
		}
		if first, ok := used[key]; ok {
			c.warnf("the field %q is left out: the attribute %q is already that of %q", acc.FullName(), key, first)
			continue
		}
		a := attribute{key: key, read: newReader(c.ds, acc)}
		_, fixed := p.fixed[key]
		switch {
		case fixed:
			c.debugf("the field %q is left out: the exporter's resource has the attribute %q", acc.FullName(), key)
			continue
		case where == onResource || where == onBoth:
			p.resourceAttrs = append(p.resourceAttrs, a)
			p.wide = append(p.wide, a.read)
			if where == onBoth && len(p.sampleAttrs) < p.maxSample {
				p.sampleAttrs = append(p.sampleAttrs, a)
			}
		case len(p.sampleAttrs) >= p.maxSample:
			c.warnf("the field %q is left out: a sample takes %d attributes at most (max_sample_attributes)", acc.FullName(), p.maxSample)
			continue
		default:
			p.sampleAttrs = append(p.sampleAttrs, a)
			p.row = append(p.row, a.read)
		}
		used[key] = acc.FullName()
	}
	for key, where := range p.placement {
		if _, field := used[key]; (where == onSample || where == onBoth) && !field {
			p.movedToSample = true
		}
	}
}

// attribute returns the key of a field's attribute and where it goes; nowhere means that the field makes none.
func (c *compiler) attribute(acc datasource.FieldAccessor) (key string, where place) {
	name := acc.FullName()
	own, known := canonical[name]
	identity := c.isIdentity(acc)
	if identity {
		own = identityKeys[name]
		known = own != ""
	}
	key = firstOf(own, name)
	if c.o.Exporter.CompatNames {
		key = name
	}
	if name == "proc.comm" {
		where = onSample
	}

	annotations := acc.Annotations()
	for _, q := range []struct {
		annotation string
		where      place
	}{{annSampleAttribute, onSample}, {annResourceAttribute, onResource}} {
		a := parseAnswer(annotations, q.annotation)
		switch {
		case !a.set:
		case !a.yes:
			if where == q.where {
				where = nowhere
			}
			if identity && known && q.where == onResource {
				c.leaveOut(own)
			}
		default:
			wanted := key
			if a.name != "" {
				wanted = a.name
			}
			if a.name != "" || !known {
				if err := checkKey(wanted); err != nil {
					c.warnf("the annotation %s of the field %q is ignored: attribute %q: %v", q.annotation, name, clipName(wanted), err)
					continue
				}
			}
			key, where = wanted, q.where
		}
	}

	if identity && known && (where == nowhere || key == own) {
		// Plan.derive makes this attribute, and puts it where the settings say: by default on the resource,
		// and then it is not said again for each sample.
		return key, nowhere
	}
	// The settings name an attribute by its key, or by that of the conventions, or by the field.
	for _, k := range []string{key, own, name} {
		if pl, ok := c.plan.placement[k]; ok && k != "" {
			if where == nowhere && pl != nowhere {
				key = k
				if c.o.Exporter.CompatNames && k == own {
					key = name
				}
			}
			where = pl
			break
		}
	}
	return key, where
}

// leaveOut drops an attribute, unless the settings say where it goes.
func (c *compiler) leaveOut(key string) {
	if _, ok := c.plan.placement[key]; !ok {
		c.plan.placement[key] = nowhere
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
				c.warnf("the annotation %s of the field %q is ignored: another field has it too", q.annotation, acc.FullName())
				continue
			}
			*q.dst = newReader(c.ds, acc)
			q.dst.cut = false // an ID may hold zeros
		}
	}
	switch {
	case p.traceID.acc != nil && p.spanID.acc != nil:
		p.row = append(p.row, p.traceID, p.spanID)
	case p.traceID.acc != nil || p.spanID.acc != nil:
		c.warnf("samples get no link: it takes a field with %s and one with %s", annTraceID, annSpanID)
		p.traceID, p.spanID = reader{}, reader{}
	}
}

// time finds the field with the time of an event: the annotated one, or else the first of IG's
// timestamp type.
func (c *compiler) time() {
	raw := c.ds.GetFieldsWithTag("type:" + ebpftypes.TimestampTypeName)
	var found datasource.FieldAccessor
	for _, acc := range c.fields {
		if !isTrue(acc.Annotations()[annTimestamp]) {
			continue
		}
		if acc.Type() == api.Kind_String { // what IG formats from the number that is wanted
			for _, r := range raw {
				if acc.FullName() == targetName(r, "formatters.timestamp.target") {
					acc = r
					break
				}
			}
		}
		if k := acc.Type(); k != api.Kind_Uint64 && k != api.Kind_Int64 {
			c.warnf("the annotation %s of the field %q is ignored: a time is a 64-bit number of nanoseconds", annTimestamp, acc.FullName())
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
		return
	}
	c.plan.timestamp = newReader(c.ds, found)
	c.plan.bootOffset = bootOffset()
}

// bootOffset returns what to add to a time since boot to get one since 1970, in nanoseconds; 0 if the clock cannot be
// read.
func bootOffset() uint64 {
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return 0
	}
	return uint64(time.Now().UnixNano() - boot.Nano())
}

// targetName is the full name of the field that IG formats from a raw one: the annotation's, or
// the raw one's without _raw, below the same parent.
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
