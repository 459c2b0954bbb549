package config

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// ProfilesPath is what OTLP over HTTP adds to a base URL
// (https://opentelemetry.io/docs/specs/otlp/#otlphttp-request).
const ProfilesPath = "/v1development/profiles"

const (
	grpcPort = "4317"
	httpPort = "4318"
)

// grpcSchemes are gRPC's name resolvers that an endpoint may begin with, as in dns:///host:port.
var grpcSchemes = []string{"dns", "unix", "passthrough"}

// An address is an endpoint taken apart.
type address struct {
	target string // a gRPC target, or a URL
	scheme string // http, https or ""
	local  bool   // does not leave this machine
	port   string
}

// takeGRPC reads an endpoint of OTLP over gRPC. The second result is the text of a Problem, "" if there
// is none.
func takeGRPC(s string) (address, string) {
	s = strings.TrimSpace(s)
	if s == "" {
		return address{}, "is missing: write where to send, such as collector:" + grpcPort
	}
	got := "got " + describe(withoutCredentials(s))
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		// unix:/path or dns:host:port. But dns:4317 is a host that is called "dns", with a port.
		before, after, colon := strings.Cut(s, ":")
		if colon && slices.Contains(grpcSchemes, before) && !isPort(after) {
			return takeResolved(s, before, after)
		}
		hostport, port, problem := takeHostPort(s, "")
		if problem != "" {
			return address{}, got + ", " + problem
		}
		if colon && slices.Contains(grpcSchemes, before) {
			hostport = "dns:///" + hostport
		}
		return address{target: hostport, local: isLocal(s), port: port}, ""
	}
	scheme = strings.ToLower(scheme)
	switch {
	case scheme == "http" || scheme == "https":
		u, err := url.Parse(s)
		switch {
		case err != nil:
			return address{}, got + ", which is not a URL"
		case u.User != nil:
			return address{}, got + ", a URL with credentials: write them as auth.username and auth.password"
		case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
			return address{}, got + ", a URL with a path: otlp-grpc takes " + scheme + "://" + u.Host + " (a path needs exporter: otlp-http)"
		}
		hostport, port, problem := takeHostPort(u.Host, scheme+"://")
		if problem != "" {
			return address{}, got + ", " + problem
		}
		return address{target: hostport, scheme: scheme, local: isLocal(u.Host), port: port}, ""
	case slices.Contains(grpcSchemes, scheme):
		return takeResolved(scheme+"://"+rest, scheme, "//"+rest)
	}
	return address{}, got + ", with an unknown scheme: otlp-grpc takes host:port, or one of http, https, " + strings.Join(grpcSchemes, ", ") + " in front of it"
}

// takeResolved reads a gRPC target that begins with one of grpcSchemes
// (https://github.com/grpc/grpc/blob/master/doc/naming.md).
func takeResolved(target, scheme, rest string) (address, string) {
	got := "got " + describe(withoutCredentials(target))
	if scheme == "unix" {
		path := strings.TrimPrefix(rest, "//")
		if path == "" || strings.HasPrefix(rest, "//") && !strings.HasPrefix(path, "/") {
			return address{}, got + ", takes unix:///path/of/the/socket"
		}
		return address{target: target, local: true}, ""
	}
	hostport := rest
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		_, hostport, ok = strings.Cut(after, "/")
		if !ok {
			return address{}, got + ", takes " + scheme + ":///host:port (with three slashes)"
		}
	}
	_, port, problem := takeHostPort(hostport, scheme+":///")
	if problem != "" {
		return address{}, got + ", " + problem
	}
	return address{target: target, local: isLocal(hostport), port: port}, ""
}

// takeHostPort reads "host:port", where neither may be missing. problem says what is wrong, with an
// example that begins with prefix; it is "" if nothing is.
func takeHostPort(s, prefix string) (hostport, port, problem string) {
	if strings.Contains(s, "@") {
		return "", "", "an address with credentials: write them as auth.username and auth.password"
	}
	if strings.ContainsAny(s, "/?# \t") {
		return "", "", "takes host:port, such as " + prefix + "collector:" + grpcPort
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		bare := strings.Trim(s, "[]")
		switch ip, err := netip.ParseAddr(bare); {
		case err == nil && ip.Is6():
			return "", "", "which has no port: write " + prefix + "[" + bare + "]:" + grpcPort
		case strings.Count(s, ":") > 1:
			return "", "", "an IPv6 address without brackets: write " + prefix + "[address]:port"
		}
		if s == "" {
			return "", "", "which has no host: write " + prefix + "collector:" + grpcPort
		}
		return "", "", "which has no port: write " + prefix + clip(s) + ":" + grpcPort
	}
	switch {
	case host == "":
		return "", "", "which has no host: write " + prefix + "collector:" + port
	case port == "":
		return "", "", "which has no port: write " + prefix + clip(host) + ":" + grpcPort
	case !isPort(port):
		return "", "", "takes a port from 1 to 65535, such as " + prefix + clip(host) + ":" + grpcPort
	}
	return s, port, ""
}

// takeURL reads an endpoint of OTLP over HTTP. With whole it is used as it is; else it is the base that
// ProfilesPath is added to. The second result is the text of a Problem, "" if there is none.
func takeURL(s string, whole bool) (address, string) {
	s = strings.TrimSpace(s)
	if s == "" {
		return address{}, "is missing: write where to send, such as http://collector:" + httpPort
	}
	got := "got " + describe(withoutCredentials(s))
	if !strings.Contains(s, "://") {
		return address{}, got + ", which is not a URL: write http://" + clip(withoutPath(s)) + " or https://" + clip(withoutPath(s))
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return address{}, got + ", which is not a URL"
	case u.Scheme != "http" && u.Scheme != "https":
		return address{}, got + ", with an unknown scheme: otlp-http takes http or https"
	case u.User != nil:
		return address{}, got + ", a URL with credentials: write them as auth.username and auth.password"
	case u.Hostname() == "":
		return address{}, got + ", which has no host: write " + u.Scheme + "://collector:" + httpPort
	case u.Port() != "" && !isPort(u.Port()):
		return address{}, got + ", takes a port from 1 to 65535"
	case u.Fragment != "":
		return address{}, got + ", takes a URL without '#'"
	case !whole && u.RawQuery != "":
		return address{}, got + ", a URL with a query: write the whole URL as profiles_endpoint"
	case !whole && strings.HasSuffix(strings.TrimRight(u.Path, "/"), ProfilesPath):
		return address{}, got + ", to which " + ProfilesPath + " would be added: leave the path out, or write the whole URL as profiles_endpoint"
	}
	if !whole {
		u.Path = strings.TrimRight(u.Path, "/")
		u.RawPath = strings.TrimRight(u.RawPath, "/")
	}
	return address{target: u.String(), scheme: u.Scheme, local: isLocal(u.Host), port: u.Port()}, ""
}

func withoutPath(s string) string {
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		s = s[i+1:]
	}
	host, _, _ := strings.Cut(s, "/")
	return host
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// isLocal reports whether an address is a loopback one, so that nothing leaves this machine.
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
