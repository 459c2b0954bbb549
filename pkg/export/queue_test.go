package export

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// held returns the sequence numbers of a stuck exporter's entries, in order, by owner.
func held(e *Exporter) map[string][]uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[string][]uint64{}
	for name, o := range e.memory.owners {
		for place := o.entries.Front(); place != nil; place = place.Next() {
			if en := place.Value.(*entry); !en.inFlight {
				out[name] = append(out[name], en.seq)
			}
		}
	}
	return out
}

// stuck starts an exporter whose receiver never answers.
func stuck(t *testing.T, queueSize int64) *Exporter {
	t.Helper()
	cfg := settings("stuck", "")
	cfg.Queue.Size, cfg.Queue.NumConsumers = queueSize, 1
	s := &stuckSender{release: make(chan struct{})}
	e := startWith(t, cfg, s)
	e.Enqueue(Message{Rows: 1, Owner: "in flight"})
	require.Eventually(t, func() bool { return inFlight(e) == 1 }, 20*time.Second, time.Millisecond)
	t.Cleanup(func() {
		close(s.release)
		stop(t, e)
	})
	return e
}

func TestQueueEvictsFairly(t *testing.T) {
	const body = 10_000
	e := stuck(t, 10*(body+entryOverhead+8)+entryOverhead+20)
	enqueue := func(owner string, n int) {
		for range n {
			e.Enqueue(Message{Body: make([]byte, body), Rows: 1, Owner: owner})
		}
	}
	enqueue("quiet", 2)
	enqueue("loud", 100)
	require.Len(t, held(e)["quiet"], 2, "one container cannot push out the others")
	loud := held(e)["loud"]
	require.NotEmpty(t, loud)
	for _, seq := range loud {
		require.Greater(t, seq, uint64(103-len(loud)), "the oldest go first")
	}
	enqueue("third", 100)
	got := held(e)
	require.Len(t, got["quiet"], 2)
	require.InDelta(t, len(got["loud"]), len(got["third"]), 1, "equal shares: %v", got)
	s := balanced(t, e)
	require.Equal(t, map[Reason]int64{ReasonQueueFull: s.Rows.Enqueued - s.Rows.Held}, s.Rows.Dropped)
	require.LessOrEqual(t, s.QueueBytes, s.QueueCapacity)
}

func TestQueueRefusesWhatCannotFit(t *testing.T) {
	e := stuck(t, 100_000)
	e.Enqueue(Message{Body: make([]byte, 50_000), Rows: 1, Owner: "a"})
	e.Enqueue(Message{Body: make([]byte, 100_000), Rows: 5, Owner: "b"})
	require.Equal(t, int64(5), balanced(t, e).Rows.Dropped[ReasonQueueFull], "only itself")
	require.Len(t, held(e)["a"], 1)
	// If a message would fit only without the entries in flight, no other entry is evicted.
	e.Enqueue(Message{Body: make([]byte, 100_000-entryOverhead-100), Rows: 7, Owner: "a"})
	require.Equal(t, int64(12), balanced(t, e).Rows.Dropped[ReasonQueueFull])
	require.Len(t, held(e)["a"], 1)
}

// If several owners have the same number of bytes, the oldest of their messages must be evicted.
func TestVictimOfEqualOwners(t *testing.T) {
	b := newBudget(1 << 20)
	for seq := range uint64(20) {
		b.acquire(newEntry(seq, Message{Owner: string(rune('a' + (seq*7)%20))}))
	}
	for seq := range uint64(20) {
		v := b.victim()
		require.Equal(t, seq, v.seq)
		b.release(v)
	}
}

// Sends that fail together must lengthen the receiver's pause only once.
func TestGateCountsParallelFailuresOnce(t *testing.T) {
	cfg := config.Retry{InitialInterval: time.Second, Multiplier: 2, MaxInterval: time.Hour}
	started := time.Now()
	failed := started.Add(time.Minute)
	g := gate{}
	for range 10 {
		g.fail(cfg, started, failed, 0)
	}
	require.Equal(t, failed.Add(time.Second), g.until)
	g.fail(cfg, failed, failed.Add(time.Minute), 0)
	require.Equal(t, failed.Add(time.Minute+2*time.Second), g.until, "the next one is another")
}

// The queue must not keep an array that is much larger than its body.
func TestQueueHoldsNoMoreThanItCounts(t *testing.T) {
	e := stuck(t, 64<<20)
	for range 10 {
		e.Enqueue(Message{Body: make([]byte, 100, 10<<20), Rows: 1, Owner: "a"})
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.memory.each(func(en *entry) { require.Less(t, cap(en.Body), 2000) })
}

// After any operations, the budget must agree with a simple model.
func TestBudgetAgainstModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	b := newBudget(1 << 20)
	free, flying := map[*entry]bool{}, map[*entry]bool{}
	any := func(m map[*entry]bool) *entry {
		for en := range m {
			return en
		}
		return nil
	}
	for i := range 20_000 {
		switch rng.IntN(6) {
		case 0, 1, 2:
			en := newEntry(uint64(i), Message{Body: make([]byte, rng.IntN(20_000)), Owner: fmt.Sprint(rng.IntN(5))})
			b.acquire(en)
			free[en] = true
		case 3:
			if en := any(free); en != nil {
				b.setInFlight(en, true)
				delete(free, en)
				flying[en] = true
			}
		case 4:
			if en := any(flying); en != nil {
				b.setInFlight(en, false)
				delete(flying, en)
				free[en] = true
			}
		case 5:
			if en := any(flying); en != nil {
				b.release(en)
				delete(flying, en)
			}
		}
		for b.over(0) {
			v := b.victim()
			if v == nil {
				break
			}
			bytes, oldest := map[string]int64{}, map[string]uint64{}
			for en := range free {
				bytes[en.Owner] += en.size
				if o, ok := oldest[en.Owner]; !ok || en.seq < o {
					oldest[en.Owner] = en.seq
				}
			}
			for _, n := range bytes {
				require.LessOrEqual(t, n, bytes[v.Owner])
			}
			require.Equal(t, oldest[v.Owner], v.seq)
			b.release(v)
			delete(free, v)
		}
		var used, pins int64
		for en := range free {
			used += en.size
		}
		for en := range flying {
			used += en.size
			pins += en.size
		}
		require.Equal(t, used, b.used)
		require.Equal(t, pins, b.inFlight)
		require.Equal(t, int64(len(free)+len(flying)), b.entries)
	}
}

// inFlight returns the number of entries that are being sent or written to disk.
func inFlight(e *Exporter) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range []*budget{e.memory, e.disk} {
		b.each(func(en *entry) {
			if en.inFlight {
				n++
			}
		})
	}
	return n
}

// Delayed entries must become ready at their time, oldest first. hurry does not shorten a wait that the receiver requested.
func TestSendQueue(t *testing.T) {
	now := time.Now()
	q := newSendQueue()
	add := func(seq uint64, wait time.Duration, asked bool) *entry {
		en := newEntry(seq, Message{})
		en.notBefore, en.mustWait = now.Add(wait), asked
		q.push(en, now)
		return en
	}
	order := func() (seqs []uint64) {
		for en := q.oldest(); en != nil; en = q.oldest() {
			q.remove(en)
			seqs = append(seqs, en.seq)
		}
		return seqs
	}
	add(5, 0, false)
	add(2, time.Second, false)
	add(1, time.Minute, true)
	add(4, time.Hour, false)
	gone := add(3, 2*time.Second, false)
	require.Equal(t, now.Add(time.Second), q.due())
	q.remove(gone)
	q.promote(now.Add(10 * time.Second))
	require.Equal(t, now.Add(time.Minute), q.due())
	require.Equal(t, []uint64{2, 5}, order())
	q.hurry()
	require.Equal(t, []uint64{4}, order())
	q.promote(now.Add(time.Minute))
	require.True(t, q.due().IsZero())
	require.Equal(t, []uint64{1}, order())
}
