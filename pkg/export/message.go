// Package export delivers encoded profile requests. It provides a queue with a byte limit, retries according to OTLP, and the
// transports otlp-grpc, otlp-http and file. Its subpackages do not depend on it. otlp and file send, spool keeps messages
// across restarts, wire encodes requests, and attempt describes the outcome of a send.
//
// The package takes requests as bytes, and does not decode them before it sends them over the network. It accounts for every
// row at every moment, see RowCounts.
package export

import (
	"maps"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// Message is one encoded ExportProfilesServiceRequest.
type Message = wire.Message

// Reason says why a message was dropped.
type Reason string

// These are the reasons for which messages are dropped.
const (
	ReasonQueueFull      Reason = "queue_full"       // sending_queue.queue_size is exceeded
	ReasonTooOld         Reason = "too_old"          // older than sending_queue.max_age
	ReasonRejected       Reason = "rejected"         // the receiver's response forbids a retry
	ReasonTooLarge       Reason = "too_large"        // the receiver accepts only smaller messages
	ReasonMaxElapsedTime Reason = "max_elapsed_time" // retry_on_failure.max_elapsed_time has passed
	ReasonRetryDisabled  Reason = "retry_disabled"   // the first attempt failed, and retry_on_failure.enabled is false
	ReasonShutdown       Reason = "shutdown"         // still held at the shutdown deadline
	ReasonStorageError   Reason = "storage_error"    // a stored message could not be read back
	ReasonStorageFull    Reason = "storage_full"     // sending_queue.storage_size is exceeded
	ReasonCorrupt        Reason = "corrupt"          // a stored message failed its checksum
)

// beforeSend reports whether messages are dropped for this reason before any attempt. Then the queue is the cause, not the
// receiver.
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
	Partial   int64 // in requests that the receiver accepted partly
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

// OriginCounts are the counts of one origin's messages.
type OriginCounts struct {
	Requests, Delivered, Partial int64
	Dropped                      map[Reason]int64
}

// Stats is a consistent snapshot of an exporter's counters. All fields except the Queue fields, Oldest, Waiting and NotStored
// only increase.
type Stats struct {
	Rows RowCounts
	// Origins contains the counts for each Message.Origin. The caller of Enqueue bounds the number of origins.
	Origins map[string]OriginCounts

	SentSamples          int64 // in accepted requests
	FailedSamples        int64 // dropped because of the receiver's response, their age or the shutdown
	EnqueueFailedSamples int64 // dropped because the queue or the storage could not hold them

	QueueBytes    int64 // held now, including those in flight
	QueueCapacity int64 // the bound of QueueBytes
	QueueMessages int64 // held now, including those in flight
	// Oldest is the time of the oldest held data. It is zero if nothing is held or the time is unknown.
	Oldest time.Time
	// Waiting reports that the exporter is not ready yet, see New.
	Waiting bool
	// NotStored reports that the last write to the storage folder failed. A restart would lose the data in memory.
	NotStored bool

	Requests     int64 // attempts, including retries
	RequestBytes int64 // of these attempts, uncompressed
	WireBytes    int64 // of these attempts, as sent: compressed, or encoded for a file
	Retries      int64 // attempts after the first one for a message

	CorruptFiles int64 // files in the storage folder without usable content
}

// of calls count with the counts of the message's origin.
func (s *Stats) of(m *Message, count func(*OriginCounts)) {
	if s.Origins == nil {
		s.Origins = map[string]OriginCounts{}
	}
	c := s.Origins[m.Origin]
	count(&c)
	s.Origins[m.Origin] = c
}

// clone copies s and its maps.
func (s Stats) clone() Stats {
	s.Rows.Dropped, s.Origins = maps.Clone(s.Rows.Dropped), maps.Clone(s.Origins)
	for origin, c := range s.Origins {
		c.Dropped = maps.Clone(c.Dropped)
		s.Origins[origin] = c
	}
	return s
}
