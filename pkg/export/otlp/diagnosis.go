package otlp

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
)

// diagnosis finds mismatches between the exporter's protocol and the receiver's.
type diagnosis struct {
	grpc    bool
	plain   bool
	written config.Written
	timeout time.Duration
	layout  string // otlp_version; empty for JSON, which is identical in all versions
}

func newDiagnosis(cfg config.Exporter, plain bool) diagnosis {
	d := diagnosis{grpc: cfg.Transport == config.TransportGRPC, plain: plain, written: cfg.Written, timeout: cfg.Timeout, layout: cfg.OTLPVersion}
	if !d.grpc && cfg.Encoding == "json" {
		d.layout = ""
	}
	return d
}

// hint returns the remedy for an error, or "" if the error is unknown.
func (d diagnosis) hint(msg string) string {
	has := func(parts ...string) bool { return has(msg, parts...) }
	switch {
	case has("looked like an HTTP/1.1 header", "missing selected ALPN property", "no application protocol",
		"unexpected HTTP status code received", "received unexpected content-type"):
		return "the receiver speaks HTTP on this port, not gRPC: " + d.otherTransport()
	case has(`malformed HTTP response "\x00\x00`, "invalid gRPC request"):
		return "the receiver speaks gRPC on this port: " + d.otherTransport()
	case has("readLoopPeekFailLocked: %!w(<nil>)"):
		// net/http reports this for a server that sends before the request, as gRPC servers do.
		return "the receiver sends data before the request, so it probably speaks gRPC on this port: " + d.otherTransport()
	case !d.plain && has("first record does not look like a TLS handshake", "server gave HTTP response to HTTPS client"):
		return "the receiver speaks plain text and this exporter speaks TLS: " + d.asPlainText() + ", or use the receiver's TLS port"
	case d.plain && has("error reading server preface", "HTTP request to an HTTPS server", `malformed HTTP response "\x15`):
		return "this exporter speaks plain text and the receiver probably speaks TLS: " + d.asTLS() + ", or use the receiver's plain-text port"
	case has("certificate signed by unknown authority"):
		return "set tls.ca_file to the authority that signed the receiver's certificate"
	case has("x509: certificate is valid for", "doesn't contain any IP SANs", "cannot validate certificate for"):
		return "set tls.server_name_override to a name in the receiver's certificate"
	case has("certificate has expired or is not yet valid", "tls: expired certificate"):
		return "renew the certificate, or set this machine's clock"
	case has("tls: certificate required", "tls: bad certificate"):
		return "the receiver requires a client certificate: set tls.cert_file and tls.key_file"
	case has("no such host", "produced zero addresses", "server misbehaving"):
		return "this machine cannot resolve the host's name: check the endpoint" + d.where() + "; in Kubernetes, the name of a service is NAME.NAMESPACE"
	case has("connection refused"):
		return "nothing listens at this address: start the receiver, or check the endpoint's host and port" + d.where()
	case has("context deadline exceeded"):
		return fmt.Sprintf("there was no answer within timeout (%s): raise timeout if the receiver is only slow", d.timeout)
	case d.layout != "" && has("unmarshal", "wireType", "wire-format", "proto: "):
		return fmt.Sprintf("the receiver could not decode the request: it was sent in the layout of otlp_version %q. Set the version that the receiver supports", d.layout)
	}
	return ""
}

func has(msg string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(msg, p) })
}

// where returns the source of the endpoint, in brackets.
func (d diagnosis) where() string {
	if d.written.Where == "" {
		return ""
	}
	return fmt.Sprintf(" (%s)", d.written.Where)
}

// asPlainText explains how to write an endpoint for plain text.
func (d diagnosis) asPlainText() string {
	if d.written.Scheme != "" || !d.grpc {
		return "write http:// instead of https:// in the endpoint" + d.where()
	}
	return "set insecure: true, or write http:// in front of the endpoint" + d.where()
}

// asTLS explains how to write an endpoint for TLS.
func (d diagnosis) asTLS() string {
	const authority = ", and set tls.ca_file if you have your own certificate authority"
	if d.written.Scheme != "" || !d.grpc {
		return "write https:// instead of http:// in the endpoint" + d.where() + authority
	}
	return "set insecure: false, or write https:// in front of the endpoint" + d.where() + authority
}

// otherTransport explains how to send with HTTP instead of gRPC, or with gRPC instead of HTTP.
func (d diagnosis) otherTransport() string {
	exporter, protocol, port := "otlp-grpc", "grpc", "4317"
	if d.grpc {
		exporter, protocol, port = "otlp-http", "http/protobuf", "4318"
	}
	how := "set exporter: " + exporter
	if strings.HasPrefix(d.written.Where, "OTEL_") {
		how = "set OTEL_EXPORTER_OTLP_PROTOCOL=" + protocol
	}
	here := "4318"
	if d.grpc {
		here = "4317"
	}
	return fmt.Sprintf("%s (its port is usually %s), or use the receiver's port for %s (usually %s) in the endpoint%s",
		how, port, map[bool]string{true: "gRPC", false: "HTTP"}[d.grpc], here, d.where())
}
