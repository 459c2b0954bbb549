package export

import (
	"container/list"
	"time"
)

// entryOverhead is the memory that a held message needs in addition to its body. It counts towards the queue's size, so the
// queue also limits many tiny messages.
const entryOverhead = 512

// entry is a message that the exporter holds. Exporter.mu guards all fields except Message, seq and size. Body is nil while the
// body is only on disk.
type entry struct {
	Message
	seq  uint64 // order of arrival; with storage, the name of its file
	size int64  // its bytes in a budget; constant

	budget   *budget       // its budget; nil after release
	place    *list.Element // its element in the owner's list
	inFlight bool          // being sent or written to disk, so it cannot be evicted
	onDisk   bool
	keepFile bool // the file could not be read; the next start may read it

	retry   backoffState
	tries   int
	firstAt time.Time // time of the first attempt
	// The entry is not sent before notBefore. If mustWait is set, a Shutdown also waits, because the receiver requested the wait
	// or the data is ahead of the clock.
	notBefore time.Time
	mustWait  bool
	early     bool // its data is ahead of the clock
	index     int  // in sendQueue.ready; -1 if not there
}

func newEntry(seq uint64, m Message) *entry {
	// Round removes the monotonic clock, which stops while a machine is suspended and ignores clock changes. Receivers do not see
	// the monotonic clock, so ages must not depend on it.
	m.Start, m.End = m.Start.Round(0), m.End.Round(0)
	return &entry{Message: m, seq: seq, size: int64(len(m.Body)+len(m.Owner)) + entryOverhead, index: -1}
}

// from returns the start time of the data. Receivers compute the age of the data from this time.
func (en *entry) from() time.Time {
	if en.Start.IsZero() {
		return en.End
	}
	return en.Start
}
