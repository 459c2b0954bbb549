// Package wire has the encodings of a request: the layouts of OTLP's versions, JSON and compression.
package wire

import (
	"time"
)

// Message is one encoded ExportProfilesServiceRequest.
type Message struct {
	// Body is the request in wire format, uncompressed, in the layout of OTLP 1.11. The exporter converts it before sending, and
	// owns it after Enqueue.
	Body []byte
	// Rows is the number of gadget rows that were merged into the request.
	Rows int64
	// Samples and Profiles count the content of the request.
	Samples  int64
	Profiles int
	// Start and End bound the time of the data; zero if unknown.
	Start, End time.Time
	// Owner is the resource if the request has only one, else empty. If the queue is full, the owner with the most bytes loses
	// its oldest message.
	Owner string
	// Origin is the source of the rows, used only for counts. It is empty if unknown, as after a restart.
	Origin string
}
