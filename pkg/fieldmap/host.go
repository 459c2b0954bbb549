package fieldmap

import (
	"hash/maphash"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/hostproc"
)

// hostReader tells which service a row outside containers belongs to. Without a Resolver all of them are one.
type hostReader struct {
	services   *hostproc.Resolver
	pid, inode reader // of the process, and of its executable
	cgroup     reader // the ID of its control group
}

// hosts finds the fields that tell the process of a row.
func (c *compiler) hosts() {
	h := &c.plan.hosts
	if c.o.Hosts == nil || c.o.Exporter.ServiceName != "" {
		return
	}
	for i := range c.plan.stacks {
		if f := &c.plan.stacks[i]; f.user != nil && f.inode.acc != nil {
			h.inode = f.inode
			if h.pid.acc == nil {
				h.pid = f.pid
			}
		}
	}
	if acc := c.byName["proc.pid"]; acc != nil {
		h.pid = newReader(c.ds, acc) // unlike that of the user stack, rows without such a stack have it
	}
	if h.pid.acc != nil {
		h.services = c.o.Hosts
		h.cgroup = c.cgroup()
	}
}

// cgroup finds the ID of a row's control group: the first field of its type.
func (c *compiler) cgroup() reader {
	for _, acc := range c.ds.GetFieldsWithTag(cgroupTag) {
		switch {
		case datasource.FieldFlagUnreferenced.In(acc.Flags()):
		case acc.Type() != api.Kind_Uint64:
			c.warnf("the control group %q is ignored: it is no 64-bit number: declare it as \"typedef __u64 profiles_cgroup_id\"", acc.FullName())
		default:
			return newReader(c.ds, acc)
		}
	}
	return reader{}
}

// onHost tells whether the row has nothing of a container.
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

// hostService returns the service of a row outside containers. It does not allocate for a process that is known.
func (p *Plan) hostService(d datasource.Data) hostproc.Service {
	if p.hosts.services == nil {
		return hostproc.Service{}
	}
	h := &p.hosts
	return h.services.Lookup(hostproc.Process{
		PID: uint32(h.pid.number(d)), Inode: h.inode.number(d), Cgroup: h.cgroup.number(d),
	})
}

// hostKey returns the key of a row's resource, made distinct by the service where the row is from outside containers.
func (p *Plan) hostKey(resource uint64, d datasource.Data) uint64 {
	if p.hosts.services == nil || !p.onHost(d) {
		return resource
	}
	s := p.hostService(d)
	if s.Name == "" {
		return resource
	}
	return p.mix(p.mix(resource, maphash.String(p.seed, s.Name)), maphash.String(p.seed, s.Path))
}

// hostGroup returns a number that stands for a service outside containers; 0: no service.
func (p *Plan) hostGroup(s hostproc.Service) uint64 {
	if s.Name == "" {
		return 0
	}
	return max(maphash.String(p.seed, s.Name), 1)
}
