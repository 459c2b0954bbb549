// Package watching checks the alert rules and the dashboard in operators/otel-profiles/watching. It uses a real Prometheus and
// the metrics of real runs.
package watching
