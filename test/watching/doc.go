// Package watching checks the alert rules and the dashboard of operators/otel-profiles/watching, with a real Prometheus and the
// metrics of real runs.
package watching
