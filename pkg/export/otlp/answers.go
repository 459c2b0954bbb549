package otlp

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
)

// maxAskedWait limits the wait that a receiver requests. Otherwise, a wrong or hostile response could stop an exporter for
// years.
const maxAskedWait = 5 * time.Minute

// retryableCodes is the table of https://opentelemetry.io/docs/specs/otlp/#failures. RESOURCE_EXHAUSTED is missing, because it is
// retryable only if the receiver sends RetryInfo.
var retryableCodes = map[codes.Code]bool{
	codes.Canceled:         true,
	codes.DeadlineExceeded: true,
	codes.Aborted:          true,
	codes.OutOfRange:       true,
	codes.Unavailable:      true,
	codes.DataLoss:         true,
}

// retryableStatus is the list of https://opentelemetry.io/docs/specs/otlp/#retryable-response-codes.
var retryableStatus = map[int]bool{
	http.StatusTooManyRequests:    true,
	http.StatusBadGateway:         true,
	http.StatusServiceUnavailable: true,
	http.StatusGatewayTimeout:     true,
}

// retryInfo finds a RetryInfo in the details of a status. The wait is untrusted, so limit it with askedWait.
func retryInfo(details []*anypb.Any) (wait time.Duration, ok bool) {
	for _, d := range details {
		var info errdetails.RetryInfo
		if d.MessageIs(&info) && d.UnmarshalTo(&info) == nil {
			return info.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}

// retryAfter reads a Retry-After header: seconds or a date (https://www.rfc-editor.org/rfc/rfc9110#field.retry-after). It returns
// 0 if the value is unusable.
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

// askedWait limits the wait that a receiver requested. It adds up to a tenth at random, so senders do not all retry at the same
// moment.
func askedWait(wait time.Duration) time.Duration {
	wait = min(max(wait, 0), maxAskedWait)
	if wait < 10 {
		return wait
	}
	return wait + rand.N(wait/10)
}
