package config

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func builtIn(t *testing.T, environ ...string) (Exporter, []string) {
	t.Helper()
	set := Load(Sources{Environ: environ})
	require.Empty(t, set.Problems())
	e, err := set.Exporter(BuiltIn)
	require.NoError(t, err)
	return e, notices(set)
}

// TestStandardVariables checks the examples and rules of https://opentelemetry.io/docs/specs/otel/protocol/exporter/.
func TestStandardVariables(t *testing.T) {
	type want func(t *testing.T, e Exporter)
	endpoint := func(endpoint, profiles string, insecure bool) want {
		return func(t *testing.T, e Exporter) {
			require.Equal(t, endpoint, e.Endpoint)
			require.Equal(t, profiles, e.ProfilesEndpoint)
			require.Equal(t, insecure, e.Insecure)
		}
	}
	headers := func(headers ...Header) want {
		return func(t *testing.T, e Exporter) { require.Equal(t, headers, e.Headers) }
	}
	for name, test := range map[string]struct {
		environ []string
		want    want
	}{
		"gRPC, plain":      {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4317"}, endpoint("collector:4317", "", true)},
		"gRPC, TLS":        {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://collector:4317/"}, endpoint("collector:4317", "", false)},
		"scheme wins":      {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://c:4317", "OTEL_EXPORTER_OTLP_INSECURE=true"}, endpoint("c:4317", "", false)},
		"no scheme":        {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=c:4317"}, endpoint("c:4317", "", false)},
		"no scheme, plain": {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=c:4317", "OTEL_EXPORTER_OTLP_INSECURE=TRUE"}, endpoint("c:4317", "", true)},
		"gRPC, for profiles": {
			[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317", "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT=https://p:4317"},
			endpoint("p:4317", "", false),
		},
		"HTTP, default": {[]string{"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"}, endpoint("http://localhost:4318", "", true)},
		"HTTP, base": {
			[]string{"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318/mycollector/"},
			endpoint("http://collector:4318/mycollector", "", true),
		},
		"HTTP, for profiles as it is": {
			[]string{"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT=https://p:4318/"},
			endpoint("", "https://p:4318/", false),
		},
		"empty is not set":    {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=", "OTEL_EXPORTER_OTLP_INSECURE=", "OTEL_EXPORTER_OTLP_TIMEOUT= "}, endpoint("localhost:4317", "", true)},
		"the last one counts": {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://c:4317", "OTEL_EXPORTER_OTLP_ENDPOINT="}, endpoint("localhost:4317", "", true)},
		"protocol for profiles": {
			[]string{"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_PROFILES_PROTOCOL=http/json"},
			func(t *testing.T, e Exporter) {
				require.Equal(t, TransportHTTP, e.Transport)
				require.Equal(t, "json", e.Encoding)
			},
		},
		"milliseconds": {[]string{"OTEL_EXPORTER_OTLP_TIMEOUT=1500"}, func(t *testing.T, e Exporter) { require.Equal(t, 1500*time.Millisecond, e.Timeout) }},
		"headers":      {[]string{"OTEL_EXPORTER_OTLP_HEADERS=api-key=a%20b%2Cc+d, X-Other = =="}, headers(Header{"api-key", "a b,c+d"}, Header{"x-other", "=="})},
		"headers for profiles": {
			[]string{"OTEL_EXPORTER_OTLP_HEADERS=a=1,b=2", "OTEL_EXPORTER_OTLP_PROFILES_HEADERS=a=3"},
			headers(Header{"a", "3"}),
		},
		"files": {
			[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://c:1", "OTEL_EXPORTER_OTLP_CERTIFICATE=/ca", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=/cert", "OTEL_EXPORTER_OTLP_PROFILES_CLIENT_KEY=/key"},
			func(t *testing.T, e Exporter) {
				require.Equal(t, TLS{CAFile: "/ca", CertFile: "/cert", KeyFile: "/key", MinVersion: "1.2"}, e.TLS)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := builtIn(t, test.environ...)
			test.want(t, e)
		})
	}
}

// Wrong values of variables that do not name a receiver are ignored with a warning.
func TestWrongStandardVariablesAreIgnored(t *testing.T) {
	for _, variable := range []string{
		"OTEL_EXPORTER_OTLP_PROTOCOL=udp", "OTEL_EXPORTER_OTLP_PROFILES_PROTOCOL=http",
		"OTEL_EXPORTER_OTLP_TIMEOUT=10s", "OTEL_EXPORTER_OTLP_PROFILES_TIMEOUT=-1", "OTEL_EXPORTER_OTLP_TIMEOUT=0",
		"OTEL_EXPORTER_OTLP_COMPRESSION=lz4",
		"OTEL_EXPORTER_OTLP_HEADERS=novalue", "OTEL_EXPORTER_OTLP_HEADERS=a=%zz", "OTEL_EXPORTER_OTLP_HEADERS=a b=c", "OTEL_EXPORTER_OTLP_HEADERS=a=%0A",
		"OTEL_RESOURCE_ATTRIBUTES=novalue",
	} {
		t.Run(variable, func(t *testing.T) {
			e, notices := builtIn(t, variable)
			want, _ := builtIn(t)
			require.Equal(t, want, e)
			require.Len(t, notices, 1)
			require.Contains(t, notices[0], "is ignored: got ")
		})
	}
	e, notices := builtIn(t, "OTEL_EXPORTER_OTLP_ENDPOINT=c:4317", "OTEL_EXPORTER_OTLP_INSECURE=1")
	require.False(t, e.Insecure)
	require.Len(t, notices, 1)

	// If the stronger variable is wrong, the weaker one applies.
	e, _ = builtIn(t, "OTEL_EXPORTER_OTLP_COMPRESSION=zstd", "OTEL_EXPORTER_OTLP_PROFILES_COMPRESSION=lz4")
	require.Equal(t, "zstd", e.Compression)

	// After a wrong address, profiles must not go to another receiver.
	for _, variable := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT=collector", "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT=ftp://c:21"} {
		_, err := Load(Sources{Environ: []string{variable}}).Exporter(BuiltIn)
		require.Error(t, err, variable)
	}
}

func TestGeneralVariables(t *testing.T) {
	e, notices := builtIn(t, "OTEL_SERVICE_NAME=node", "OTEL_RESOURCE_ATTRIBUTES=service.name=other,team=a%2Cb")
	require.Empty(t, notices)
	require.Equal(t, "node", e.HostServiceName)
	require.Empty(t, e.ServiceName, "a workload is not named after the process that profiles it")
	require.Equal(t, []KeyValue{{"team", "a,b"}}, e.Resource)

	e, notices = builtIn(t, "OTEL_RESOURCE_ATTRIBUTES=service.name=node,service.version=1,k8s.pod.name=p,container.id=c,host.name=h,cloud.region=r")
	require.Equal(t, "node", e.HostServiceName)
	require.Equal(t, []KeyValue{{"cloud.region", "r"}}, e.Resource)
	require.Len(t, notices, 1)
	for _, key := range []string{"service.version", "k8s.pod.name", "container.id", "host.name"} {
		require.Contains(t, notices[0], key)
	}

	// These variables fill gaps of every exporter.
	src := Sources{
		File:    readYAML(t, exportersYAML("prod: {endpoint: 'c:4317', resource: [team=core], host_service_name: file}")),
		Environ: []string{"OTEL_RESOURCE_ATTRIBUTES=team=other,cloud.region=r", "OTEL_SERVICE_NAME=env"},
	}
	e, err := Load(src).Exporter("prod")
	require.NoError(t, err)
	require.Equal(t, []KeyValue{{"team", "core"}, {"cloud.region", "r"}}, e.Resource)
	require.Equal(t, "env", e.HostServiceName)
	src.Environ = append(src.Environ, EnvPrefix+"PROD_HOST_SERVICE_NAME=own")
	e, err = Load(src).Exporter("prod")
	require.NoError(t, err)
	require.Equal(t, "own", e.HostServiceName)
}

func TestNamedVariables(t *testing.T) {
	file := exportersYAML(`
prod-eu.1: {endpoint: 'c:4317'}
prod: {endpoint: 'c:4317'}
prod-tls: {endpoint: 'c:4317'}
`)
	load := func(environ ...string) *Set {
		set := Load(Sources{File: readYAML(t, file), Environ: environ, Daemon: true})
		require.Empty(t, set.Problems())
		return set
	}
	get := func(set *Set, name string) Exporter {
		e, err := set.Exporter(name)
		require.NoError(t, err)
		return e
	}

	set := load(EnvPrefix+"PROD_EU_1_TLS_CA_FILE=/ca", EnvPrefix+"PROD_AUTH_BEARER_TOKEN=t,1", EnvPrefix+"PROD_HEADERS=x-a=1\\,2,x-b=3")
	require.Equal(t, "/ca", get(set, "prod-eu.1").TLS.CAFile)
	require.EqualValues(t, "t,1", get(set, "prod").Auth.BearerToken)
	require.Equal(t, []Header{{"x-a", "1,2"}, {"x-b", "3"}}, get(set, "prod").Headers)

	// The longest existing name wins. So the variable belongs to prod-tls, and not to the group tls of prod.
	set = load(EnvPrefix + "PROD_TLS_INSECURE=true")
	require.True(t, get(set, "prod-tls").Insecure)
	require.False(t, get(set, "prod").Insecure)

	// An exporter can exist only in the environment. Every spelling of its name finds it.
	set = load(EnvPrefix+"EDGE_WEST_ENDPOINT=https://edge:4317", EnvPrefix+"EDGE_WEST_TLS_MIN_VERSION=1.3")
	for _, name := range []string{"edge_west", "edge-west", "Edge.West"} {
		e := get(set, name)
		require.Equal(t, "edge:4317", e.Endpoint)
		require.Equal(t, "1.3", e.TLS.MinVersion)
		require.Equal(t, "environment", e.Source)
	}
	_, err := set.Exporter("prod_eu_1")
	require.ErrorContains(t, err, "unknown exporter", "a name of the file has one spelling")

	// These variables define the built-in exporter in a daemon.
	set = load(EnvPrefix + "OTLP_TIMEOUT=3s")
	require.Equal(t, 3*time.Second, get(set, "otlp").Timeout)
}

// notices returns the notices of all exporters.
func notices(set *Set) []string {
	all := slices.Clone(set.notices)
	for _, name := range set.Names() {
		all = append(all, set.drafts[name].notices...)
	}
	return all
}
