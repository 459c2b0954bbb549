// Package prometheus contains no code. Its module builds Prometheus and promtool: see the Makefile.
package prometheus
