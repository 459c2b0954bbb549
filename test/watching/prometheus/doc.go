// Package prometheus is the place of the module that builds Prometheus and promtool: see the Makefile. It holds no code.
package prometheus
