// Package attempt has the result of one attempt to send a request.
package attempt

import (
	"errors"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/export/wire"
)

// Verdict is the meaning of an attempt for the request.
type Verdict uint8

// The verdicts. The zero value loses nothing.
const (
	Retryable Verdict = iota
	Accepted
	Partial // accepted in part: never sent again
	Rejected
	TooLarge
)

// Outcome is the result of one attempt.
type Outcome struct {
	Verdict Verdict
	// Sent is what went over the network, or into a file, in bytes.
	Sent int64
	// What is the answer for people: a status in the protocol's words.
	What string
	// Words are the receiver's own, untrusted.
	Words string
	// Hint is the remedy, if the verdict alone does not say enough.
	Hint string
	// Wait is how long the receiver asked to wait; 0 if it did not.
	Wait time.Duration
	// RejectedProfiles is the number that the receiver says it left out.
	RejectedProfiles int64
}

// NotEncoded is the outcome where a request could not be written in the form that the transport sends.
func NotEncoded(err error) Outcome {
	if errors.Is(err, wire.ErrBusy) {
		return Outcome{What: err.Error()}
	}
	return Outcome{Verdict: Rejected, What: "the request cannot be encoded: " + err.Error()}
}
