package fieldmap

import (
	"cmp"
	"hash/maphash"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/hostproc"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/proccontext"
)

// hostReader finds a row's service by its process. If services is nil, all rows outside containers belong to one service.
type hostReader struct {
	services   *hostproc.Resolver
	pid, inode reader   // PID of the process, and inode of its executable
	cgroup     reader   // ID of the process's cgroup
	contexts   Contexts // nil if process contexts are not used
}

// Contexts provides process contexts. Its methods never block. proccontext.Resolver implements it.
type Contexts interface {
	Lookup(p proccontext.Process) (c *proccontext.Context, watched bool)
	Watch(p proccontext.Process, owner string)
}

// hosts finds the fields that identify a row's process.
func (c *compiler) hosts() {
	h := &c.plan.hosts
	if c.o.Hosts == nil && c.o.Contexts == nil || c.o.Exporter.ServiceName != "" {
		return
	}
	for i := range c.plan.stacks {
		if f := &c.plan.stacks[i]; f.user != nil && f.inode.acc != nil {
			h.inode, h.pid = f.inode, cmp.Or(h.pid, f.pid)
		}
	}
	if acc := c.processField(processPID); acc != nil {
		h.pid = newReader(c.ds, acc) // also set in rows without a user stack
	}
	if h.pid.acc == nil {
		return
	}
	h.contexts = c.o.Contexts
	if h.services = c.o.Hosts; h.services != nil {
		h.cgroup = c.cgroup()
	}
}

// cgroup finds the field that holds a row's cgroup ID. It is the first field of that type.
func (c *compiler) cgroup() reader {
	for _, acc := range c.ds.GetFieldsWithTag(cgroupTag) {
		switch {
		case datasource.FieldFlagUnreferenced.In(acc.Flags()):
		case acc.Type() != api.Kind_Uint64:
			c.warnf("the cgroup field %q is ignored because it is not a 64-bit number: declare it as \"typedef __u64 profiles_cgroup_id\"", acc.FullName())
		default:
			return newReader(c.ds, acc)
		}
	}
	return reader{}
}

// onHost reports whether the row has no container.
func (p *Plan) onHost(d datasource.Data) bool {
	if len(p.containerID.guarded(d)) > 0 {
		return false
	}
	for i := range p.identityFields {
		if len(p.identityFields[i].guarded(d)) > 0 {
			return false
		}
	}
	return true
}

// hostService returns the service of a row outside containers. Call it only if such rows have services. It does not allocate for a
// process that is known.
func (p *Plan) hostService(d datasource.Data) hostproc.Service {
	h := &p.hosts
	return h.services.Lookup(hostproc.Process{
		PID: uint32(h.pid.number(d)), Inode: h.inode.number(d), Cgroup: h.cgroup.number(d),
	})
}

var noContext = new(proccontext.Context)

// context returns the context that a row's process publishes. It returns noContext if there is none or contexts are not used.
// host reports that the row comes from outside containers. context does not allocate for a known process.
func (p *Plan) context(d datasource.Data, host bool) *proccontext.Context {
	h := &p.hosts
	if h.contexts == nil || host && h.services == nil || !host && p.exporter.ProcessContext != config.ContextAll {
		return noContext
	}
	process := proccontext.Process{PID: uint32(h.pid.number(d)), Inode: h.inode.number(d)}
	c, watched := h.contexts.Lookup(process)
	if !watched {
		h.contexts.Watch(process, p.owner(d, host))
	}
	return cmp.Or(c, noContext)
}

// owner identifies the processes that share a limit on published names. They run in one container or, outside containers,
// belong to one service.
func (p *Plan) owner(d datasource.Data, host bool) string {
	if host {
		return "host/" + p.hostService(d).Name
	}
	if id := p.identity[idContainerID].text(d); id != "" {
		return "container/" + id
	}
	owner := "pod"
	for i := range p.identityFields {
		owner += "/" + p.identityFields[i].text(d)
	}
	return owner
}

// processKey adds the service and the context of the row's process to the resource's key.
func (p *Plan) processKey(resource uint64, d datasource.Data) uint64 {
	if p.hosts.services == nil && p.hosts.contexts == nil {
		return resource
	}
	host := p.onHost(d)
	if host && p.hosts.services != nil {
		s := p.hostService(d)
		resource = p.mix(p.mix(resource, maphash.String(p.seed, s.Name)), maphash.String(p.seed, s.Path))
	}
	return p.mix(resource, p.context(d, host).Key)
}
