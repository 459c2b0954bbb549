package unwinder

import (
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// checkPriority makes the check run after Inspektor Gadget's enrichment (0) and before all row consumers.
const checkPriority = 50

// containers checks that each row names the correct container. Inspektor Gadget finds a row's container by the inode number of
// the mount namespace. The kernel reuses these numbers immediately, so a process that exited with its container could be
// attributed to the next container. containers is not safe for concurrent use.
type containers struct {
	pid, containerPID datasource.FieldAccessor
	starts            map[uint32]uint64 // start times of the processes in the current rows by PID, in nanoseconds since boot
	checked           map[uint32]bool   // by PID: whether the process still runs
	first             map[uint32]uint64 // start times of containers' first processes by PID, in nanoseconds since boot
	value             datasource.FieldAccessor
	wrong             func(value uint64)
}

// subscribe subscribes to ds. Call it after all operators have added their fields. value names the field that holds a row's
// weight.
func (c *containers) subscribe(ds datasource.DataSource, value string) error {
	c.pid, c.containerPID, c.value = ds.GetField("proc.pid"), ds.GetField("runtime.containerPid"), ds.GetField(value)
	if c.pid == nil || c.containerPID == nil || c.value == nil {
		return nil // the rows have no container names
	}
	return ds.Subscribe(func(_ datasource.DataSource, d datasource.Data) error {
		pid, err := c.pid.Uint32(d)
		if err != nil {
			return nil
		}
		if first, err := c.containerPID.Uint32(d); err == nil && first != 0 && !c.right(pid, first) {
			n, _ := c.value.Uint64(d)
			c.wrong(n)
			return datasource.ErrDiscard
		}
		return nil
	}, checkPriority)
}

// begin prepares for the rows of a packet. starts maps the PIDs in these rows to start times.
func (c *containers) begin(starts map[uint32]uint64) {
	c.starts, c.checked = starts, map[uint32]bool{}
	if len(c.first) > 4096 || c.first == nil {
		c.first = map[uint32]uint64{}
	}
}

// right reports whether a process can belong to the container whose first process has the PID first. A process that exited
// before the container started cannot belong to it.
func (c *containers) right(pid, first uint32) bool {
	start := c.starts[pid]
	if start == 0 || pid == first {
		return true
	}
	alive, ok := c.checked[pid]
	if !ok {
		now, err := procfs.Began("/proc", pid)
		alive = err == nil && procfs.SameStart(now, start)
		c.checked[pid] = alive
	}
	if alive {
		return true // a running process keeps its namespace alive, so the inode number was not reused
	}
	if now, err := procfs.Began("/proc", first); err == nil {
		c.first[first] = now
	}
	return start+procfs.Tick >= c.first[first]
}
