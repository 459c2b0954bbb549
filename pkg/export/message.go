// Package export delivers encoded profile requests: a queue bounded in bytes, retries by the rules of OTLP, and the transports
// otlp-grpc, otlp-http and file. Its parts are folders. otlp and file send, spool keeps messages over a restart, wire has the
// forms of a request, and attempt is the result of sending one. None of them knows this package.
//
// The package takes requests as bytes and never decodes them for the network. Their content and size were decided before. Every
// row that enters is accounted for at every moment: see RowCounts.
package export

import (
	"maps"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// Message is one encoded ExportProfilesServiceRequest on its way.
type Message = wire.Message

// Reason is why a message was dropped.
type Reason string

// The reasons for which messages are dropped.
const (
	ReasonQueueFull      Reason = "queue_full"       // sending_queue.queue_size is used up
	ReasonTooOld         Reason = "too_old"          // older than sending_queue.max_age
	ReasonRejected       Reason = "rejected"         // the receiver gave an answer that forbids a retry
	ReasonTooLarge       Reason = "too_large"        // the receiver takes smaller messages only
	ReasonMaxElapsedTime Reason = "max_elapsed_time" // retry_on_failure.max_elapsed_time is over
	ReasonRetryDisabled  Reason = "retry_disabled"   // failed once, and retry_on_failure.enabled is false
	ReasonShutdown       Reason = "shutdown"         // still held when the shutdown deadline was over
	ReasonStorageError   Reason = "storage_error"    // a stored message could not be read back
	ReasonStorageFull    Reason = "storage_full"     // sending_queue.storage_size is used up
	ReasonCorrupt        Reason = "corrupt"          // a stored message failed its checksum
)

// beforeSend reports whether messages with this reason are dropped before any attempt. Then the
// queue is the cause, not the receiver.
func (r Reason) beforeSend() bool {
	switch r {
	case ReasonQueueFull, ReasonStorageFull, ReasonStorageError, ReasonCorrupt:
		return true
	}
	return false
}

// RowCounts accounts for all rows. At every moment
//
//	Enqueued + Recovered = Delivered + Held + Partial + the sum of Dropped.
type RowCounts struct {
	Enqueued  int64 // handed to Enqueue
	Recovered int64 // found in the storage folder at the start
	Delivered int64 // in requests that the receiver accepted
	Held      int64 // waiting or in flight, in memory or in the storage folder
	Partial   int64 // in requests that the receiver accepted only partly
	Dropped   map[Reason]int64
}

// DroppedTotal is the sum of Dropped.
func (c RowCounts) DroppedTotal() int64 {
	var n int64
	for v := range maps.Values(c.Dropped) {
		n += v
	}
	return n
}

// OriginCounts are the parts of counts that messages of one origin have.
type OriginCounts struct {
	Requests, Delivered, Partial int64
	Dropped                      map[Reason]int64
}

// Stats is a consistent snapshot of an exporter's counters. All but the Queue ones, Oldest, Waiting and NotStored only grow.
type Stats struct {
	Rows RowCounts
	// Origins has Requests and members of Rows by Message.Origin. The caller of Enqueue bounds the number of origins.
	Origins map[string]OriginCounts

	SentSamples          int64 // in accepted requests
	FailedSamples        int64 // dropped because of the receiver's answer, their age or the shutdown
	EnqueueFailedSamples int64 // dropped because the queue or the storage could not hold them

	QueueBytes    int64 // held now, in flight included
	QueueCapacity int64 // the bound of QueueBytes
	QueueMessages int64 // held now, in flight included
	// Oldest is the time of the oldest held data. It is zero if there is none, or if the time is unknown.
	Oldest time.Time
	// Waiting reports that the exporter is not ready yet: see Options.Patient.
	Waiting bool
	// NotStored reports that the last write to the storage folder failed. A restart would lose the data in memory.
	NotStored bool

	Requests     int64 // attempts, retries included
	RequestBytes int64 // of these, uncompressed
	WireBytes    int64 // of these, as they were sent: compressed, or encoded into a file
	Retries      int64 // attempts after the first one of a message

	CorruptFiles int64 // files of the storage folder without usable content
}

// of returns the counts of a message's origin.
func (s *Stats) of(m *Message, count func(*OriginCounts)) {
	if s.Origins == nil {
		s.Origins = map[string]OriginCounts{}
	}
	c := s.Origins[m.Origin]
	count(&c)
	s.Origins[m.Origin] = c
}

// clone copies s with its maps.
func (s Stats) clone() Stats {
	s.Rows.Dropped, s.Origins = maps.Clone(s.Rows.Dropped), maps.Clone(s.Origins)
	for origin, c := range s.Origins {
		c.Dropped = maps.Clone(c.Dropped)
		s.Origins[origin] = c
	}
	return s
}
