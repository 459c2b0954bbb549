// Package wire implements the encodings of a request: the layouts of OTLP's versions, JSON and compression.
package wire

import (
	"time"
)

// Message is one encoded ExportProfilesServiceRequest.
type Message struct {
	// Body is the request in wire format, uncompressed, in the layout of OTLP 1.11. The exporter owns the body after Enqueue, and
	// converts it before sending.
	Body []byte
	// Rows is the number of gadget rows that were merged into the request.
	Rows int64
	// Samples and Profiles are the numbers of samples and profiles in the request.
	Samples  int64
	Profiles int
	// Start and End are the time range of the data, or zero if unknown.
	Start, End time.Time
	// Owner is the resource if the request contains only one resource, and otherwise empty. If the queue is full, the owner with
	// the most bytes loses its oldest message.
	Owner string
	// Origin is the source of the rows, used only for counts. It is empty if unknown, for example after a restart.
	Origin string
}
