package config

import (
	"cmp"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// ProfilesPath is the path that OTLP over HTTP appends to a base URL
// (https://opentelemetry.io/docs/specs/otlp/#otlphttp-request).
const ProfilesPath = "/v1development/profiles"

const (
	grpcPort = "4317"
	httpPort = "4318"
)

// grpcSchemes lists gRPC's name resolvers that an endpoint can begin with, as in dns:///host:port.
var grpcSchemes = []string{"dns", "unix", "passthrough"}

// An address is a parsed endpoint.
type address struct {
	target string // a gRPC target, or a URL
	scheme string // http, https or ""
	local  bool   // true if nothing leaves this machine
	port   string
}

// take parses an endpoint with read. The second result of take and read describes a problem, or is "".
func take(s, example string, read func(string) (address, string)) (address, string) {
	s = strings.TrimSpace(s)
	if s == "" {
		return address{}, "is missing: set the receiver's address, such as " + example
	}
	a, problem := read(s)
	if problem != "" {
		problem = "got " + describe(withoutCredentials(s)) + ", " + problem
	}
	return a, problem
}

// takeGRPC parses an endpoint of OTLP over gRPC.
func takeGRPC(s string) (address, string) { return take(s, "collector:"+grpcPort, readGRPC) }

func readGRPC(s string) (address, string) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		// The endpoint is unix:/path or dns:host:port. In contrast, dns:4317 is a host called "dns" and a port.
		before, after, _ := strings.Cut(s, ":")
		resolved := slices.Contains(grpcSchemes, before)
		if resolved && !isPort(after) {
			return readResolved(s, before, after)
		}
		a, problem := readHostPort(s, "")
		if resolved {
			a.target = "dns:///" + a.target
		}
		return a, problem
	}
	scheme = strings.ToLower(scheme)
	switch {
	case scheme == "http" || scheme == "https":
		u, err := url.Parse(s)
		switch {
		case err != nil:
			return address{}, "which is not a URL"
		case u.User != nil:
			return address{}, urlWithCredentials
		case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
			return address{}, "a URL with a path: otlp-grpc accepts " + scheme + "://" + u.Host + " (a path needs exporter: otlp-http)"
		}
		a, problem := readHostPort(u.Host, scheme+"://")
		a.scheme = scheme
		return a, problem
	case slices.Contains(grpcSchemes, scheme):
		return readResolved(scheme+"://"+rest, scheme, "//"+rest)
	}
	return address{}, "with an unknown scheme: otlp-grpc accepts host:port, optionally with one of the schemes http, https, " + strings.Join(grpcSchemes, ", ")
}

// readResolved parses a gRPC target that begins with one of grpcSchemes
// (https://github.com/grpc/grpc/blob/master/doc/naming.md).
func readResolved(target, scheme, rest string) (address, string) {
	if scheme == "unix" {
		path := strings.TrimPrefix(rest, "//")
		if path == "" || strings.HasPrefix(rest, "//") && !strings.HasPrefix(path, "/") {
			return address{}, "expected unix:///path/of/the/socket"
		}
		return address{target: target, local: true}, ""
	}
	hostport := rest
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		_, hostport, ok = strings.Cut(after, "/")
		if !ok {
			return address{}, "expected " + scheme + ":///host:port (with three slashes)"
		}
	}
	a, problem := readHostPort(hostport, scheme+":///")
	a.target = target
	return a, problem
}

// readHostPort parses "host:port". Both parts are required. prefix is the text before them, for the examples in problems.
func readHostPort(s, prefix string) (address, string) {
	if strings.Contains(s, "@") {
		return address{}, "an address with credentials: set auth.username and auth.password instead"
	}
	if strings.ContainsAny(s, "/?# \t") {
		return address{}, "expected host:port, such as " + prefix + "collector:" + grpcPort
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = s, ""
		bare := strings.Trim(s, "[]")
		if ip, err := netip.ParseAddr(bare); err == nil && ip.Is6() {
			host = "[" + bare + "]"
		} else if strings.Count(s, ":") > 1 {
			return address{}, "an IPv6 address without brackets: use " + prefix + "[address]:port"
		}
	}
	switch {
	case host == "":
		return address{}, "which has no host: use " + prefix + "collector:" + cmp.Or(port, grpcPort)
	case port == "":
		return address{}, "which has no port: use " + prefix + clip(host) + ":" + grpcPort
	case !isPort(port):
		return address{}, "expected a port from 1 to 65535, such as " + prefix + clip(host) + ":" + grpcPort
	}
	return address{target: s, local: isLocal(s), port: port}, ""
}

const urlWithCredentials = "a URL with credentials: set auth.username and auth.password instead"

// takeURL parses an endpoint of OTLP over HTTP. With whole, the endpoint is the complete URL. Otherwise, ProfilesPath is
// appended later.
func takeURL(s string, whole bool) (address, string) {
	return take(s, "http://collector:"+httpPort, func(s string) (address, string) { return readURL(s, whole) })
}

func readURL(s string, whole bool) (address, string) {
	if !strings.Contains(s, "://") {
		host, _, _ := strings.Cut(s[strings.LastIndexByte(s, '@')+1:], "/")
		return address{}, "which is not a URL: use http://" + clip(host) + " or https://" + clip(host)
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return address{}, "which is not a URL"
	case u.Scheme != "http" && u.Scheme != "https":
		return address{}, "with an unknown scheme: otlp-http accepts http or https"
	case u.User != nil:
		return address{}, urlWithCredentials
	case u.Hostname() == "":
		return address{}, "which has no host: use " + u.Scheme + "://collector:" + httpPort
	case u.Port() != "" && !isPort(u.Port()):
		return address{}, "expected a port from 1 to 65535"
	case u.Fragment != "":
		return address{}, "expected a URL without '#'"
	case !whole && u.RawQuery != "":
		return address{}, "a URL with a query: set the whole URL as profiles_endpoint"
	case !whole && strings.HasSuffix(strings.TrimRight(u.Path, "/"), ProfilesPath):
		return address{}, "to which " + ProfilesPath + " would be added: remove the path, or set the whole URL as profiles_endpoint"
	}
	if !whole {
		u.Path = strings.TrimRight(u.Path, "/")
		u.RawPath = strings.TrimRight(u.RawPath, "/")
	}
	return address{target: u.String(), scheme: u.Scheme, local: isLocal(u.Host), port: u.Port()}, ""
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// isLocal reports whether hostport is a loopback address.
func isLocal(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}
