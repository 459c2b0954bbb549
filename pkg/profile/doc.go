// Package profile aggregates stack samples over a time window and encodes them as OTLP profiles.
//
// It is pure: no clock, no I/O, no goroutine of its own. An Aggregator takes samples from any number of goroutines. Each Flush
// returns complete ExportProfilesServiceRequests in wire format. Each is below a size limit, with only its own dictionary
// entries.
//
// The rules of a message are those of opentelemetry/proto/profiles/v1development/profiles.proto
// (https://github.com/open-telemetry/opentelemetry-proto).
package profile
