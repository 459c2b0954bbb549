package procmap

import (
	"sync/atomic"
	"time"
)

const (
	// wait limits the time for opening and identifying one file, or for reading one process. A disk takes milliseconds.
	wait = 5 * time.Second
	// maxStuck limits how many files, and how many processes, can hang at the same time.
	maxStuck = 16
	// After maxDoubtful devices on doubtful file systems have hung, such file systems are no longer used. Each device counts
	// for the time forgive, even if it has answered late. Otherwise, a file system that always answers late, under new device
	// numbers, would use all the time.
	maxDoubtful = 4
	forgive     = 10 * time.Minute
)

// opening holds the device on which a file was last opened, and the trust in it. It can be read while another goroutine waits
// for the file system.
type opening struct{ v atomic.Uint64 }

func (o *opening) set(dev device, t trust) {
	o.v.Store(uint64(dev.major)<<36 | uint64(dev.minor)<<4 | uint64(t))
}

func (o *opening) get() (device, trust) {
	v := o.v.Load()
	return device{uint32(v >> 36), uint32(v >> 4)}, trust(v & 15)
}

// stuckDevice is a device whose file system does not answer.
type stuckDevice struct {
	waiting int       // goroutines that have not returned
	until   time.Time // the device is avoided until then, and while goroutines wait
}

// isStuck reports whether a device does not answer. The caller holds r.mountsMu.
func (r *Resolver) isStuck(dev device, now time.Time) bool {
	for d, s := range r.stuck {
		if s.waiting == 0 && !now.Before(s.until) {
			delete(r.stuck, d)
		}
	}
	return r.stuck[dev] != nil
}

// markStuck records that opening or reading a file hangs, and returns the file's device.
func (r *Resolver) markStuck(on *opening) device {
	dev, t := on.get()
	r.mountsMu.Lock()
	defer r.mountsMu.Unlock()
	s := r.stuck[dev]
	if s == nil {
		s = &stuckDevice{}
		r.stuck[dev] = s
	}
	s.waiting++
	if t != trusted {
		s.until = time.Now().Add(forgive)
	}
	return dev
}

// unmarkStuck records that a hanging call on the device has returned.
func (r *Resolver) unmarkStuck(dev device) {
	r.mountsMu.Lock()
	defer r.mountsMu.Unlock()
	if s := r.stuck[dev]; s != nil {
		s.waiting--
	}
}

// Stuck reports that reading the open file hangs. The file's device is then avoided. If the read returns later, the caller must
// call the returned function.
func (f *File) Stuck() (ended func()) {
	if f.r == nil {
		return func() {}
	}
	dev := f.r.markStuck(&f.f.opening)
	return func() { f.r.unmarkStuck(dev) }
}
