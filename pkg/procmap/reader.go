package procmap

import (
	"context"
	"runtime"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/patience"
)

// The reading goroutine can use the CPU time burst immediately. It earns one second of CPU time every slowdown seconds. So if
// processes start without pause, it uses at most a fifth of one CPU.
const (
	burst    = time.Second
	slowdown = 5
)

// run reads the queued processes and files until ctx ends. burst and slowdown limit its CPU time.
func (r *Resolver) run(ctx context.Context) {
	sweep := time.NewTicker(10 * time.Second)
	defer sweep.Stop()
	release := time.NewTicker(time.Second)
	defer release.Stop()
	defer func() {
		r.mu.Lock()
		r.release(len(r.heldFiles))
		r.mu.Unlock()
		r.closeFiles(ctx)
		r.mountsMu.Lock()
		r.own.close()
		r.initial.close()
		r.mountsMu.Unlock()
	}()
	// The kernel counts CPU time by thread, so the goroutine stays on one.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	allowance := patience.Allowance{Burst: burst, Slowdown: slowdown}
	var next chooser
	for {
		select { // handle the tickers even if the queues are never empty
		case <-sweep.C:
			r.sweep()
		case <-release.C:
			r.releaseOld(time.Now())
		default:
		}
		cpu := patience.ThreadTime()
		req, f := next.ready(r.queue, r.toRead)
		if req == nil && f == nil {
			select {
			case <-ctx.Done():
				return
			case <-sweep.C:
				r.sweep()
				continue
			case <-release.C:
				r.releaseOld(time.Now())
				r.closeFiles(ctx)
				continue
			case q := <-r.queue:
				req = &q
			case f = <-r.toRead:
			}
		}
		var used time.Duration
		if req != nil {
			used = r.readProcess(ctx, *req)
		} else {
			used = r.readFile(ctx, f)
		}
		r.closeFiles(ctx)
		allowance.Use(used + patience.ThreadTime() - cpu)
		allowance.Rest(ctx)
		if ctx.Err() != nil {
			return
		}
	}
}

// maxInRow is the number of processes that are read before a file.
const maxInRow = 8

// chooser decides what is read next. Processes come first, because they can exit, while files usually stay. But an endless
// queue of processes must not block files.
type chooser struct{ inRow int }

// ready returns the next item to read, or nil if both queues are empty.
func (c *chooser) ready(queue <-chan request, toRead <-chan *file) (*request, *file) {
	if c.inRow >= maxInRow {
		c.inRow = 0
		select {
		case f := <-toRead:
			return nil, f
		default:
		}
	}
	select {
	case req := <-queue:
		c.inRow++
		return &req, nil
	default:
	}
	c.inRow = 0
	select {
	case f := <-toRead:
		return nil, f
	default:
		return nil, nil
	}
}
