package export

import (
	"context"
	"time"
)

// sender is one transport. Its methods are called from several goroutines at once; close comes
// once, when no send is under way any more or they have been cancelled.
type sender interface {
	// send makes one attempt and does not keep body. It returns when ctx ends.
	send(ctx context.Context, body []byte) outcome
	close() error
}

// verdict is what an attempt means for the message.
type verdict uint8

const (
	undecided verdict = iota // the zero value, which no sender returns on purpose: the message is tried again
	accepted
	partial // accepted in part: never sent again
	retryable
	rejected
	tooLarge
)

// outcome is the result of one attempt.
type outcome struct {
	verdict verdict
	// sent is what went over the network, or into a file, in bytes.
	sent int64
	// what names the answer for a person: a status in the protocol's words.
	what string
	// words are the receiver's own, untrusted.
	words string
	// hint is what to do about it, if there is more to say than what the verdict says.
	hint string
	// wait is how long the receiver asked to wait; 0 if it did not.
	wait time.Duration
	// rejectedProfiles is what the receiver says it left out.
	rejectedProfiles int64
}
