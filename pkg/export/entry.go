package export

import (
	"container/list"
	"time"
)

// entryOverhead is the cost of a held message beside its body. It counts in the queue's bytes, so a flood of tiny messages is
// bounded, too.
const entryOverhead = 512

// entry is a message that the exporter holds. All fields but Message, seq and size are guarded by
// Exporter.mu. Body is nil while it is only on disk.
type entry struct {
	Message
	seq  uint64 // order of arrival; with storage, the name of its file
	size int64  // bytes that it takes of a budget, fixed

	budget   *budget       // its budget; nil once it has left
	place    *list.Element // among its owner's entries there
	inFlight bool          // being sent or written to disk: it cannot be given up
	onDisk   bool
	keepFile bool // it could not be read, and may at the next start

	retry   backoffState
	tries   int
	firstAt time.Time // of the first try
	// It is not sent before notBefore. With mustWait, a Shutdown respects that, too. The receiver requested the wait, or the data
	// is ahead of the clock.
	notBefore time.Time
	mustWait  bool
	early     bool // it waits for the clock
	index     int  // in sendQueue.ready; -1 outside
}

func newEntry(seq uint64, m Message) *entry {
	// The times have no part of the monotonic clock, which stands still while a machine is suspended and ignores that the clock
	// is set. Ages must be the same for the receiver.
	m.Start, m.End = m.Start.Round(0), m.End.Round(0)
	return &entry{Message: m, seq: seq, size: int64(len(m.Body)+len(m.Owner)) + entryOverhead, index: -1}
}

// from is the request's start, by which receivers judge its age.
func (en *entry) from() time.Time {
	if en.Start.IsZero() {
		return en.End
	}
	return en.Start
}
