package export

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// maxAskedWait caps the wait that a receiver asks for. A wrong or hostile answer must not stop an
// exporter for years.
const maxAskedWait = 5 * time.Minute

// retryableCodes is the table of
// https://opentelemetry.io/docs/specs/otlp/#failures. RESOURCE_EXHAUSTED is retryable only if the
// receiver says with RetryInfo that it can recover; that is decided beside this table.
var retryableCodes = map[codes.Code]bool{
	codes.Canceled:         true,
	codes.DeadlineExceeded: true,
	codes.Aborted:          true,
	codes.OutOfRange:       true,
	codes.Unavailable:      true,
	codes.DataLoss:         true,
}

// retryableStatus is the list of
// https://opentelemetry.io/docs/specs/otlp/#retryable-response-codes.
var retryableStatus = map[int]bool{
	http.StatusTooManyRequests:    true,
	http.StatusBadGateway:         true,
	http.StatusServiceUnavailable: true,
	http.StatusGatewayTimeout:     true,
}

// retryInfo finds a RetryInfo among the details of a status. The wait is negative or absurd if
// the receiver says so: cap it with askedWait.
func retryInfo(details []*anypb.Any) (wait time.Duration, ok bool) {
	for _, d := range details {
		var info errdetails.RetryInfo
		if d.MessageIs(&info) && d.UnmarshalTo(&info) == nil {
			return info.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}

// retryAfter reads a Retry-After header: seconds or a date
// (https://www.rfc-editor.org/rfc/rfc9110#field.retry-after). 0 where it says nothing usable.
func retryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0
	}
	if s, err := strconv.ParseUint(value, 10, 64); err == nil {
		return time.Duration(min(s, uint64(maxAskedWait/time.Second))) * time.Second
	}
	if t, err := http.ParseTime(value); err == nil {
		return t.Sub(now)
	}
	return 0
}

// askedWait is the wait that a receiver asked for, within bounds, with up to a tenth added so that
// not every sender comes back at the same moment.
func askedWait(wait time.Duration) time.Duration {
	wait = min(max(wait, 0), maxAskedWait)
	if wait < 10 {
		return wait
	}
	return wait + rand.N(wait/10)
}

// backoffState is the growing wait of one message, or of the receiver as a whole. The zero value
// is ready for the first wait.
type backoffState struct{ b *backoff.ExponentialBackOff }

// next is the wait after one more failure.
func (s *backoffState) next(cfg config.Retry) time.Duration {
	if s.b == nil {
		initial := max(cfg.InitialInterval, time.Millisecond)
		s.b = &backoff.ExponentialBackOff{
			InitialInterval:     initial,
			RandomizationFactor: min(max(cfg.RandomizationFactor, 0), 1),
			Multiplier:          max(cfg.Multiplier, 1),
			MaxInterval:         max(cfg.MaxInterval, initial),
		}
		s.b.Reset()
	}
	return s.b.NextBackOff()
}

// gate holds back all sends while the receiver fails, so that a full queue does not turn into a
// flood of doomed requests. An answer of any kind that is not a request to come back later opens it.
type gate struct {
	until time.Time
	set   time.Time
	wait  backoffState
	asked bool
}

// fail notes that a send which began at started failed and may be tried again. Sends that were
// under way together count as one failure.
func (g *gate) fail(cfg config.Retry, started, now time.Time, asked time.Duration) {
	until := now.Add(asked)
	if !started.Before(g.set) {
		if own := now.Add(g.wait.next(cfg)); own.After(until) {
			until = own
		}
		g.set = now
		g.asked = false
	}
	if until.After(g.until) {
		g.until = until
	}
	g.asked = g.asked || asked > 0
}

func (g *gate) open()                     { *g = gate{} }
func (g *gate) closed(now time.Time) bool { return g.until.After(now) }
func (g *gate) failing() bool             { return !g.set.IsZero() }

func (g *gate) hurry() {
	if !g.asked {
		g.until = time.Time{}
	}
}
