// Package prometheus is the folder of the module that builds Prometheus and promtool: see the Makefile. It has no code.
package prometheus
