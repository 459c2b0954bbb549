// Package attempt describes the outcome of one attempt to send a request.
package attempt

import (
	"errors"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// Verdict says what happens to a request after an attempt.
type Verdict uint8

// These are the verdicts. The zero value loses no data.
const (
	Retryable Verdict = iota
	Accepted
	Partial // partly accepted, never sent again
	Rejected
	TooLarge
)

// Outcome is the result of one attempt.
type Outcome struct {
	Verdict Verdict
	// Sent is the number of bytes sent over the network or written to a file.
	Sent int64
	// What describes the response for users, with the protocol's status.
	What string
	// Words is the receiver's message, which is untrusted.
	Words string
	// Hint is the remedy, if the verdict does not imply it.
	Hint string
	// Wait is the wait that the receiver requested, or 0.
	Wait time.Duration
	// RejectedProfiles is the number of profiles that the receiver rejected.
	RejectedProfiles int64
}

// NotEncoded returns the outcome for a request that could not be encoded for the transport.
func NotEncoded(err error) Outcome {
	if errors.Is(err, wire.ErrBusy) {
		return Outcome{What: err.Error()}
	}
	return Outcome{Verdict: Rejected, What: "the request cannot be encoded: " + err.Error()}
}
