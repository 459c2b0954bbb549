module github.com/ig-otel-profiles/ig-otel-profiles/test/k8s/registry

go 1.26.0

require github.com/google/go-containerregistry v0.21.3
