// Package profile aggregates stack samples over a time window and encodes them as OTLP profiles.
//
// It uses no clock, no I/O and no goroutines of its own. An Aggregator accepts samples from any number of goroutines. Each
// Flush returns complete ExportProfilesServiceRequests in wire format. Each request is below a size limit, and only contains
// the dictionary entries that it needs.
//
// Messages follow the rules of opentelemetry/proto/profiles/v1development/profiles.proto
// (https://github.com/open-telemetry/opentelemetry-proto).
package profile
