// Package profile aggregates stack samples over a time window and encodes them as OTLP profiles.
//
// It is pure: no clock, no I/O, no goroutine of its own. An Aggregator takes samples from any
// number of goroutines and hands out, at each Flush, messages that are complete
// ExportProfilesServiceRequests in wire format, each under a size limit and each with only the
// dictionary entries that it refers to.
//
// The rules of a message are those of opentelemetry/proto/profiles/v1development/profiles.proto
// (https://github.com/open-telemetry/opentelemetry-proto).
package profile
