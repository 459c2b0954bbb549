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
	// Sent is the number of bytes on the network, or in a file.
	Sent int64
	// What describes the answer to users: a status in the protocol's words.
	What string
	// Words are the receiver's own, untrusted.
	Words string
	// Hint is the remedy, if the verdict alone does not say enough.
	Hint string
	// Wait is how long the receiver asked to wait; 0 if it did not.
	Wait time.Duration
	// RejectedProfiles is the receiver's number of rejected profiles.
	RejectedProfiles int64
}

// NotEncoded is the outcome if a request could not be encoded for the transport.
func NotEncoded(err error) Outcome {
	if errors.Is(err, wire.ErrBusy) {
		return Outcome{What: err.Error()}
	}
	return Outcome{Verdict: Rejected, What: "the request cannot be encoded: " + err.Error()}
}
