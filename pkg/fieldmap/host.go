package fieldmap

import (
	"hash/maphash"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/hostproc"
)

// hostReader tells which service a row outside containers belongs to. Without a Resolver all of them are one.
type hostReader struct {
	services   *hostproc.Resolver
	pid, inode reader // of the process, and of its executable
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
		h.pid = newReader(c.ds, acc) // which is there without a user stack, too
	}
	if h.pid.acc != nil {
		h.services = c.o.Hosts
	}
}

// onHost tells whether the row has nothing of a container.
func (p *Plan) onHost(d datasource.Data) bool {
	if len(p.containerID.guarded(d)) > 0 {
		return false
	}
	for i := range p.ids {
		if len(p.ids[i].guarded(d)) > 0 {
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
	return p.hosts.services.Lookup(hostproc.Process{PID: uint32(p.hosts.pid.number(d)), Inode: p.hosts.inode.number(d)})
}

// hostKey makes the rows of the services outside containers distinct.
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

// hostGroup is the number of a service outside containers, 0 for none.
func (p *Plan) hostGroup(s hostproc.Service) uint64 {
	if s.Name == "" {
		return 0
	}
	return max(maphash.String(p.seed, s.Name), 1)
}
