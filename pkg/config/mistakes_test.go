package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A mistake is a user's input with its expected message.
type mistake struct {
	// file is the YAML below `exporters:` in config.yaml.
	file    string
	environ []string
	flags   Flags
	// name is the requested exporter, by default "prod".
	name string
	// daemon runs the case in a process that serves others.
	daemon bool

	answer string
	// notice marks a message that leaves the exporter usable.
	notice bool
	// global marks a message that belongs to no exporter.
	global bool
}

func prod(settings string) mistake { return mistake{file: "prod: {" + settings + "}"} }

func (m mistake) answered(s string) mistake { m.answer = s; return m }
func (m mistake) noticed(s string) mistake  { m.answer, m.notice = s, true; return m }

const (
	onProd  = `exporter "prod": `
	onBuilt = `exporter "otlp": `
)

var mistakes = []struct {
	title string
	cases []mistake
}{
	{"Names", []mistake{
		{file: "prod: {endpoint: 'c:4317'}", name: "prd", answer: `unknown exporter "prd": the known exporters are otlp, prod`},
		{daemon: true, name: "prod", answer: `unknown exporter "prod": none is configured; add one under operator.otel-profiles.exporters in the config, or set OTEL_EXPORTER_OTLP_ENDPOINT for "otlp"`},
		{daemon: true, file: "prod: {endpoint: 'c:4317'}", name: "otlp", answer: `unknown exporter "otlp": the known exporters are prod; in a daemon, otlp exists only if the daemon's config or environment names it`},
		{file: "{}", name: "prod", answer: `unknown exporter "prod": the known exporters are otlp; config.yaml has none under operator.otel-profiles.exporters, or is not valid YAML`},
		{file: "'a b': {endpoint: 'c:4317'}", name: "a b", answer: `exporter "a b": name (config.yaml): got "a b", expected a name without spaces, ':', ',' or '=', for use on the command line`},
		{file: "prod: collector:4317", answer: onProd + `operator.otel-profiles.exporters.prod (config.yaml): got a string, expected a map of settings`},
		{file: "[prod]", global: true, answer: `operator.otel-profiles.exporters (config.yaml): got a list, expected a map from exporter names to maps of settings`},
		{
			environ: []string{EnvPrefix + "P_1_TIMEOUT=1s"}, file: "{p-1: {endpoint: 'c:4317'}, p_1: {endpoint: 'c:4317'}}", name: "p-1",
			answer: `exporter "p-1": timeout (` + EnvPrefix + `P_1_TIMEOUT): the variable matches several exporters: p-1, p_1: rename all but one`,
		},
	}},
	{"Folders", []mistake{
		{
			file:   "{a: {endpoint: 'a:4317', sending_queue: {storage: /var/lib/q}}, prod: {endpoint: 'b:4317', sending_queue: {storage: /var/lib/q/}}}",
			answer: onProd + `sending_queue.storage (config.yaml): got "/var/lib/q/", the folder of exporter "a": each exporter needs its own folder`,
		},
	}},
	{"Keys", []mistake{
		prod(`endpont: "c:4317"`).answered(onProd + `endpont (config.yaml): unknown key; the closest match is endpoint; endpoint (config.yaml): is missing: set the receiver's address, such as collector:4317`),
		prod(`endpoint: "c:4317", tls: {ca_flie: /ca}`).answered(onProd + `tls.ca_flie (config.yaml): unknown key; the closest match is tls.ca_file`),
		prod(`endpoint: "c:4317", tsl: {ca_file: /ca}`).answered(onProd + `tsl (config.yaml): unknown key; the closest match is tls`),
		prod(`endpoint: "c:4317", ca_file: /ca`).answered(onProd + `ca_file (config.yaml): unknown key; the closest match is tls.ca_file`),
		prod(`endpoint: "c:4317", sending_queue: {sizer: requests}`).answered(onProd + `sending_queue.sizer (config.yaml): unknown key; sending_queue accepts queue_size, num_consumers, storage, storage_size, max_age`),
		prod(`endpoint: "c:4317", tls: true`).answered(onProd + `tls (config.yaml): got a boolean, expected a map of insecure, ca_file, ca_pem, include_system_ca_certs_pool, cert_file, cert_pem, key_file, key_pem, server_name_override, insecure_skip_verify, min_version, reload_interval`),
		{environ: []string{EnvPrefix + "PROD_TIMOUT=3s"}, file: "prod: {endpoint: 'c:4317'}", answer: onProd + EnvPrefix + `PROD_TIMOUT: unknown variable; the closest match is ` + EnvPrefix + `PROD_TIMEOUT`},
		{environ: []string{EnvPrefix + "PROD_TSL_CA_FILE=/ca"}, file: "prod: {endpoint: 'c:4317'}", answer: onProd + EnvPrefix + `PROD_TSL_CA_FILE: unknown variable; the closest match is ` + EnvPrefix + `PROD_TLS_CA_FILE`},
		{environ: []string{EnvPrefix + "EDGE_ENDPIONT=c:4317"}, global: true, answer: EnvPrefix + `EDGE_ENDPIONT: unknown variable; the form is ` + EnvPrefix + `<NAME>_<KEY>, such as ` + EnvPrefix + `PROD_ENDPOINT`},
		{environ: []string{EnvPrefix + "PROD_TSL_INSECURE=true"}, file: "prod: {endpoint: 'c:4317'}", answer: onProd + EnvPrefix + `PROD_TSL_INSECURE: unknown variable; the closest match is ` + EnvPrefix + `PROD_TLS_INSECURE`},
		{environ: []string{EnvPrefix + "PROD_NONSENSE_OF_SOME_LENGTH=1"}, file: "prod: {endpoint: 'c:4317'}", answer: onProd + EnvPrefix + `PROD_NONSENSE_OF_SOME_LENGTH: unknown variable; an exporter accepts ` + strings.Join(envSuffixes(), ", ")},
		{environ: []string{nearPrefix + "PROD_ENDPOINT=c:4317"}, global: true, answer: nearPrefix + `PROD_ENDPOINT: unknown variable; the closest match is ` + EnvPrefix + `PROD_ENDPOINT`},
		{environ: []string{"OTEL_EXPORTER_OTLP_PROFILES_ENDPIONT=http://c:4317"}, name: "otlp", notice: true, answer: onBuilt + `OTEL_EXPORTER_OTLP_PROFILES_ENDPIONT is ignored: unknown variable; the closest match is OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT`},
		{environ: []string{EnvPrefix + "EDGE=c:4317"}, global: true, answer: EnvPrefix + `EDGE: unknown variable; the form is ` + EnvPrefix + `<NAME>_<KEY>, such as ` + EnvPrefix + `PROD_ENDPOINT`},
	}},
	{"Values", []mistake{
		prod(`exporter: otlphttp, endpoint: "http://c:4318"`).answered(onProd + `exporter (config.yaml): got "otlphttp", expected one of otlp-grpc, otlp-http, file`),
		prod(`endpoint: "c:4317", timeout: 10`).answered(onProd + `timeout (config.yaml): got the number 10, expected a duration with a unit, such as 30s, of at least 1ms; use 10s for seconds`),
		prod(`endpoint: "c:4317", timeout: 1d`).answered(onProd + `timeout (config.yaml): got "1d", expected a duration with a unit, such as 30s, of at least 1ms`),
		prod(`endpoint: "c:4317", timeout: -1s`).answered(onProd + `timeout (config.yaml): got "-1s", expected a duration with a unit, such as 30s, of at least 1ms`),
		prod(`endpoint: "c:4317", batch: {interval: 100ms}`).answered(onProd + `batch.interval (config.yaml): got "100ms", expected a duration with a unit, such as 30s, of at least 1s, of at most 1h`),
		prod(`endpoint: "c:4317", batch: {max_request_size: big}`).answered(onProd + `batch.max_request_size (config.yaml): got "big", expected a size in bytes, such as 1MiB, from 64 KiB to 1.0 GiB`),
		prod(`endpoint: "c:4317", sending_queue: {queue_size: 1000}`).answered(onProd + `sending_queue.queue_size (config.yaml): got the number 1000, expected a size in bytes, such as 128MiB, from 64 KiB to 1.0 PiB`),
		prod(`endpoint: "c:4317", sending_queue: {queue_size: 1MiB}`).answered(onProd + `sending_queue.queue_size (config.yaml): got 1.0 MiB, expected at least batch.max_request_size (3.5 MiB), and preferably many times that: the limit is in bytes, not requests`),
		prod(`endpoint: "c:4317", sending_queue: {max_age: 5s}`).answered(onProd + `sending_queue.max_age (config.yaml): got 5s, expected more than batch.interval (10s), because the oldest rows of a request have this age when it is sent`),
		prod(`endpoint: "c:4317", sending_queue: {num_consumers: 0}`).answered(onProd + `sending_queue.num_consumers (config.yaml): got the number 0, expected a whole number from 1 to 1000`),
		prod(`endpoint: "c:4317", retry_on_failure: {multiplier: 0.5}`).answered(onProd + `retry_on_failure.multiplier (config.yaml): got the number 0.5, expected a number from 1 to 100`),
		prod(`endpoint: "c:4317", retry_on_failure: {initial_interval: 1m}`).answered(onProd + `retry_on_failure.max_interval (config.yaml): got 30s, expected at least retry_on_failure.initial_interval (1m)`),
		prod(`endpoint: "c:4317", insecure: "on"`).answered(onProd + `insecure (config.yaml): got "on", expected true or false`),
		prod(`endpoint: "c:4317", insecure: true, tls: {insecure: false}`).answered(onProd + `insecure (config.yaml): got true, and tls.insecure is false: they are the same setting, so set only one of them`),
		prod(`endpoint: "c:4317", compression: snappy`).answered(onProd + `compression (config.yaml): got "snappy", expected one of gzip, zstd, none`),
		prod(`endpoint: "c:4317", otlp_version: 2`).answered(onProd + `otlp_version (config.yaml): got the number 2, expected one of 1.11, 1.9, 1.8`),
		prod(`endpoint: "c:4317", preset: pyroscop`).answered(onProd + `preset (config.yaml): got "pyroscop", expected one of collector, devfiler, elastic, history, parca, pyroscope`),
		prod(`endpoint: "c:4317", sampling: 10`).answered(onProd + `sampling (config.yaml): got the number 10, expected 1/N with a whole number N from 1 to 1000000, such as 1/10`),
		prod(`endpoint: "c:4317", service_name: 0123`).answered(onProd + `service_name (config.yaml): got the number 83, expected a string; put it in quotes`),
		prod(`endpoint: "c:4317", pod_labels: {app: true}`).answered(onProd + `pod_labels (config.yaml): got a map, expected a list, or a comma-separated string`),
		prod(`endpoint: "c:4317", attributes: ["process.pid=no"]`).answered(onProd + `attributes (config.yaml): got "no" for "process.pid", expected a list of "key=value", comma-separated "key=value" pairs, or a map, each value one of resource, sample, both, drop`),
		prod(`endpoint: "c:4317", resource: ["prod"]`).answered(onProd + `resource (config.yaml): got a string without "=", expected a list of "key=value", comma-separated "key=value" pairs, or a map`),
		prod(`endpoint: "c:4317", resource: ["service.name=x"]`).answered(onProd + `resource (config.yaml): got service.name: set service_name for all profiles, or host_service_name for processes outside containers`),
		prod(`endpoint: "c:4317", resource: ["a b=c"]`).answered(onProd + `resource (config.yaml): got the key "a b", expected keys of at most 255 bytes without spaces`),
		prod(`endpoint: "c:4317", resource: ["a=1", "a=2"]`).answered(onProd + `resource (config.yaml): got the key "a" twice, expected a list of "key=value", comma-separated "key=value" pairs, or a map`),
		prod(`endpoint: "c:4317", max_values_per_attribute: many`).answered(onProd + `max_values_per_attribute (config.yaml): got "many", expected a whole number of at least 0`),
		prod(`endpoint: "c:4317", sampling: 1/0`).answered(onProd + `sampling (config.yaml): got "1/0", expected 1/N with a whole number N from 1 to 1000000, such as 1/10`),
		prod(`endpoint: "c:4317", sending_queue: {storage: /q, storage_size: 1MiB}`).answered(onProd + `sending_queue.storage_size (config.yaml): got 1.0 MiB, expected at least batch.max_request_size (3.5 MiB)`),
		prod(`endpoint: "c:4317", headers: {x-scope-orgid: 1}`).answered(onProd + `headers (config.yaml): got a number for "x-scope-orgid", expected a list of "key=value", comma-separated "key=value" pairs, or a map; put it in quotes`),
		prod(`endpoint: "c:4317", headers: ["x scope=1"]`).answered(onProd + `headers (config.yaml): got the header name "x scope", expected a list of "key=value", comma-separated "key=value" pairs, or a map; names have letters, digits, '-', '_' and '.'`),
		prod(`endpoint: "c:4317", headers: ["content-type=x"]`).answered(onProd + `headers (config.yaml): got the header "content-type", expected a list of "key=value", comma-separated "key=value" pairs, or a map; the transport sets this header itself: remove it`),
		prod(`endpoint: "c:4317", headers: ["grpc-timeout=x"]`).answered(onProd + `headers (config.yaml): got the header "grpc-timeout", expected a list of "key=value", comma-separated "key=value" pairs, or a map; the transport sets this header itself: remove it`),
		{file: "prod: {endpoint: 'c:4317'}", flags: Flags{"otel-profiles-insecure": "yes"}, answer: onProd + `insecure (--otel-profiles-insecure): got "yes", expected true or false`},
		{file: "prod: {endpoint: 'c:4317'}", environ: []string{EnvPrefix + "PROD_TIMEOUT=soon"}, answer: onProd + `timeout (` + EnvPrefix + `PROD_TIMEOUT): got "soon", expected a duration with a unit, such as 30s, of at least 1ms`},
	}},
	{"Endpoints", []mistake{
		prod(``).answered(onProd + `endpoint (config.yaml): is missing: set the receiver's address, such as collector:4317`),
		prod(`endpoint: collector`).answered(onProd + `endpoint (config.yaml): got "collector", which has no port: use collector:4317`),
		prod(`endpoint: "https://collector"`).answered(onProd + `endpoint (config.yaml): got "https://collector", which has no port: use https://collector:4317`),
		prod(`endpoint: ":4317"`).answered(onProd + `endpoint (config.yaml): got ":4317", which has no host: use collector:4317`),
		prod(`endpoint: "c:grpc"`).answered(onProd + `endpoint (config.yaml): got "c:grpc", expected a port from 1 to 65535, such as c:4317`),
		prod(`endpoint: "fd00::1"`).answered(onProd + `endpoint (config.yaml): got "fd00::1", which has no port: use [fd00::1]:4317`),
		prod(`endpoint: "grpc://c:4317"`).answered(onProd + `endpoint (config.yaml): got "grpc://c:4317", with an unknown scheme: otlp-grpc accepts host:port, optionally with one of the schemes http, https, dns, unix, passthrough`),
		prod(`endpoint: "dns://c:4317"`).answered(onProd + `endpoint (config.yaml): got "dns://c:4317", expected dns:///host:port (with three slashes)`),
		prod(`endpoint: "http://c:4317/otlp"`).answered(onProd + `endpoint (config.yaml): got "http://c:4317/otlp", a URL with a path: otlp-grpc accepts http://c:4317 (a path needs exporter: otlp-http)`),
		prod(`endpoint: "https://me:s3cr3t@c:4317"`).answered(onProd + `endpoint (config.yaml): got "https://…@c:4317", a URL with credentials: set auth.username and auth.password instead`),
		prod(`endpoint: "c:"`).answered(onProd + `endpoint (config.yaml): got "c:", which has no port: use c:4317`),
		prod(`endpoint: "unix://run/otel.sock"`).answered(onProd + `endpoint (config.yaml): got "unix://run/otel.sock", expected unix:///path/of/the/socket`),
		prod(`exporter: otlp-http, endpoint: "http://:4318"`).answered(onProd + `endpoint (config.yaml): got "http://:4318", which has no host: use http://collector:4318`),
		prod(`exporter: otlp-http, endpoint: "http://c:99999"`).answered(onProd + `endpoint (config.yaml): got "http://c:99999", expected a port from 1 to 65535`),
		prod(`exporter: otlp-http, profiles_endpoint: "c/p"`).answered(onProd + `profiles_endpoint (config.yaml): got "c/p", which is not a URL: use http://c or https://c`),
		prod(`exporter: otlp-http, endpoint: "u:s3cr3t@c/p"`).answered(onProd + `endpoint (config.yaml): got "…@c/p", which is not a URL: use http://c or https://c`),
		prod(`exporter: otlp-http, endpoint: "c:4318"`).answered(onProd + `endpoint (config.yaml): got "c:4318", which is not a URL: use http://c:4318 or https://c:4318`),
		prod(`exporter: otlp-http, endpoint: "ftp://c:4318"`).answered(onProd + `endpoint (config.yaml): got "ftp://c:4318", with an unknown scheme: otlp-http accepts http or https`),
		prod(`exporter: otlp-http, endpoint: "http://c:4318/v1development/profiles"`).answered(onProd + `endpoint (config.yaml): got "http://c:4318/v1development/profiles", to which /v1development/profiles would be added: remove the path, or set the whole URL as profiles_endpoint`),
		prod(`exporter: otlp-http, endpoint: "http://c:4318?k=s3cr3t"`).answered(onProd + `endpoint (config.yaml): got "http://c:4318?…", a URL with a query: set the whole URL as profiles_endpoint`),
		{environ: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=collector"}, name: "otlp", answer: onBuilt + `endpoint (OTEL_EXPORTER_OTLP_ENDPOINT): got "collector", which has no port: use collector:4317`},
		{flags: Flags{"otel-profiles-endpoint": "collector"}, name: "otlp", answer: onBuilt + `endpoint (--otel-profiles-endpoint): got "collector", which has no port: use collector:4317`},
		prod(`exporter: file`).answered(onProd + `path (config.yaml): is missing: set the output file, such as path: profiles.jsonl`),
		prod(`endpoint: "c:4318"`).noticed(onProd + `endpoint: port 4318 is usually for OTLP over HTTP: if so, set exporter: otlp-http; OTLP over gRPC usually uses port 4317`),
	}},
	{"Credentials and certificates", []mistake{
		prod(`endpoint: "c:4317", auth: {username: me, password: s3cr3t, bearer_token: s3cr3t}`).answered(onProd + `auth (config.yaml): got a bearer token and a user: set only one of them`),
		prod(`endpoint: "c:4317", auth: {username: me, password: s3cr3t, bearer_token_file: /t}`).answered(onProd + `auth (config.yaml): got a bearer token and a user: set only one of them`),
		prod(`endpoint: "c:4317", auth: {bearer_token: s3cr3t, bearer_token_file: /t}`).answered(onProd + `auth.bearer_token_file (config.yaml): is set together with auth.bearer_token: set only one of them`),
		prod(`endpoint: "c:4317", auth: {username: "a:b", password: s3cr3t}`).answered(onProd + `auth.username (config.yaml): got a name with ':', which basic authentication does not allow`),
		prod(`endpoint: "c:4317", tls: {key_file: /key}`).answered(onProd + `tls.key_file (config.yaml): has no certificate: set tls.cert_file or tls.cert_pem, too`),
		prod(`endpoint: "c:4317", auth: {username: me}`).answered(onProd + `auth.username (config.yaml): has no password: set auth.password or auth.password_file, too`),
		prod(`endpoint: "c:4317", auth: {password: s3cr3t}`).answered(onProd + `auth.password (config.yaml): has no user: set auth.username, too`),
		prod(`endpoint: "c:4317", auth: {bearer_token: "s3cr3t\n"}`).answered(onProd + `auth.bearer_token (config.yaml): got a value with a line break or a zero byte; a line break at the end of a secret is the usual cause`),
		prod(`endpoint: "c:4317", auth: {bearer_token: 123}`).answered(onProd + `auth.bearer_token (config.yaml): got a value that is not a string, expected a string; put it in quotes`),
		prod(`endpoint: "c:4317", auth: {bearer_token: s3cr3t}, headers: ["authorization=s3cr3t"]`).answered(onProd + `headers (config.yaml): got the header "authorization" together with auth.bearer_token: set only one of them`),
		prod(`endpoint: "http://c:4317", auth: {bearer_token: s3cr3t}`).answered(onProd + `auth.bearer_token (config.yaml): would be sent in plain text: use TLS (https:// in the endpoint), or set insecure: true if everyone on the network path may read it`),
		prod(`endpoint: "http://c:4317", auth: {bearer_token_file: /t}`).answered(onProd + `auth.bearer_token (config.yaml): would be sent in plain text: use TLS (https:// in the endpoint), or set insecure: true if everyone on the network path may read it`),
		prod(`endpoint: "http://c:4317", auth: {username: me, password_file: /p}`).answered(onProd + `auth.password (config.yaml): would be sent in plain text: use TLS (https:// in the endpoint), or set insecure: true if everyone on the network path may read it`),
		prod(`endpoint: "c:4317", insecure: true, headers: ["x-api-key=s3cr3t"]`).noticed(onProd + `headers: credentials are sent in plain text to c:4317: anyone on the network path can read them`),
		prod(`endpoint: "http://c:4317", headers: ["x-honeycomb-team=s3cr3t"]`).answered(onProd + `headers (config.yaml): would be sent in plain text: use TLS (https:// in the endpoint), or set insecure: true if everyone on the network path may read it`),
		prod(`endpoint: "http://localhost:4317", proxy_url: "http://proxy:3128", auth: {bearer_token: s3cr3t}`).answered(onProd + `auth.bearer_token (config.yaml): would be sent in plain text to the proxy of proxy_url: use TLS (https:// in the endpoint), or set insecure: true if everyone on the network path may read it`),
		prod(`endpoint: "localhost:4317", insecure: true, proxy_url: "http://proxy:3128", headers: ["uptrace-dsn=s3cr3t"]`).noticed(onProd + `headers: credentials are sent in plain text to the proxy of proxy_url and to localhost:4317: anyone on the network path can read them`),
		prod(`endpoint: "https://c:4317", proxy_url: "http://proxy:3128", oauth2: {token_url: "http://localhost/t", client_id: me, client_secret: s3cr3t}`).answered(onProd + `oauth2.token_url (config.yaml): got a URL with http://, which would show the client secret to everyone on the network path: use https://`),
		prod(`endpoint: "c:4317", tls: {cert_file: /cert}`).answered(onProd + `tls.cert_file (config.yaml): has no key: set tls.key_file or tls.key_pem, too`),
		prod(`endpoint: "c:4317", tls: {ca_file: /ca, ca_pem: x}`).answered(onProd + `tls.ca_file (config.yaml): is set together with tls.ca_pem: set only one of them; tls.ca_pem (config.yaml): got text without a certificate, expected PEM (-----BEGIN CERTIFICATE-----)`),
		prod(`endpoint: "c:4317", tls: {cert_pem: s3cr3t, key_pem: s3cr3t}`).answered(onProd + `tls.cert_pem (config.yaml): found no certificate, expected PEM (-----BEGIN CERTIFICATE-----)`),
		prod(`endpoint: "c:4317", tls: {insecure_skip_verify: true}`).noticed(onProd + `tls.insecure_skip_verify: the server's certificate is not verified: anyone on the network path can read and change the data; to trust a certificate instead, set tls.ca_file`),
		prod(`endpoint: "c:4317", oauth2: {client_id: me}`).answered(onProd + `oauth2.token_url (config.yaml): is missing although oauth2.client_id is set: set the URL of the token endpoint, such as https://login.example.com/oauth2/token; oauth2.client_secret (config.yaml): is missing although oauth2.client_id is set: set it, or oauth2.client_secret_file`),
		prod(`endpoint: "c:4317", oauth2: {token_url: "https://l/t", client_secret: s3cr3t, client_secret_file: /s}`).answered(onProd + `oauth2.client_id (config.yaml): is missing although oauth2.token_url is set: set the client ID; oauth2.client_secret_file (config.yaml): is set together with oauth2.client_secret: set only one of them`),
		prod(`endpoint: "c:4317", oauth2: {token_url: "http://l/t", client_id: me, client_secret: s3cr3t}`).answered(onProd + `oauth2.token_url (config.yaml): got a URL with http://, which would show the client secret to everyone on the network path: use https://`),
		prod(`endpoint: "c:4317", oauth2: {token_url: "https://me:s3cr3t@l/t", client_id: me, client_secret: s3cr3t}`).answered(onProd + `oauth2.token_url (config.yaml): got "https://…@l/t", a URL with credentials: set oauth2.client_id and oauth2.client_secret instead`),
		prod(`endpoint: "c:4317", oauth2: {token_url: "https://l/t", client_id: me, client_secret: s3cr3t}, auth: {bearer_token: s3cr3t}`).answered(onProd + `oauth2 (config.yaml): is set together with auth: set only one of them`),
		prod(`endpoint: "http://c:4317", oauth2: {token_url: "https://l/t", client_id: me, client_secret: s3cr3t}`).answered(onProd + `oauth2.token_url (config.yaml): would be sent in plain text: use TLS (https:// in the endpoint), or set insecure: true if everyone on the network path may read it`),
		prod(`endpoint: "c:4317", proxy_url: "proxy:3128"`).answered(onProd + `proxy_url (config.yaml): got "proxy:3128", expected the URL of an HTTP proxy, such as http://proxy:3128; with a TLS endpoint, the proxy sees only encrypted data`),
		prod(`endpoint: "c:4317", proxy_url: "socks5://me:s3cr3t@proxy"`).answered(onProd + `proxy_url (config.yaml): got "socks5://…@proxy", expected the URL of an HTTP proxy, such as http://proxy:3128; with a TLS endpoint, the proxy sees only encrypted data`),
	}},
	{"No effect", []mistake{
		prod(`endpoint: "unix:///run/otel.sock", proxy_url: "http://proxy:3128"`).noticed(onProd + `proxy_url: has no effect: the endpoint is a socket of this machine`),
		prod(`endpoint: "c:4317", tls: {include_system_ca_certs_pool: true}`).noticed(onProd + `tls.include_system_ca_certs_pool: has no effect without tls.ca_file or tls.ca_pem: the system's certificates are trusted anyway`),
		prod(`endpoint: "c:4317", encoding: json`).noticed(onProd + `encoding: has no effect with exporter: otlp-grpc, only with otlp-http`),
		prod(`exporter: file, path: p, retention: {max_age: 24h}`).noticed(onProd + `retention.max_age: has no effect without format: history`),
		prod(`exporter: file, path: p, format: history, rotation: {max_days: 7}`).noticed(onProd + `rotation.max_days: has no effect with format: history: set the limits under retention instead`),
		prod(`exporter: file, path: p, tls: {ca_file: /ca}`).noticed(onProd + `tls.ca_file: has no effect with exporter: file, only with otlp-grpc, otlp-http`),
		prod(`endpoint: "https://c:4317", insecure: true`).noticed(onProd + `insecure: has no effect: the endpoint begins with https://`),
		prod(`endpoint: "http://c:4317", tls: {ca_file: /ca}`).noticed(onProd + `tls.ca_file: has no effect: the connection is plain text`),
		prod(`endpoint: "c:4317", preset: parca, compression: zstd`).noticed(onProd + `compression: Parca refuses zstd: set gzip or none, unless a proxy in front of it accepts zstd`),
		prod(`endpoint: "c:4317", sending_queue: {storage_size: 1GiB}`).noticed(onProd + `sending_queue.storage_size: has no effect without sending_queue.storage`),
		prod(`endpoint: "c:4317", batch: {interval: 1h}`).noticed(onProd + `batch.interval: the oldest rows of a request are 1h old when it is sent, so sending_queue.max_age (1h) drops it: raise sending_queue.max_age, or shorten the interval`),
		prod(`endpoint: "c:4317", batch: {max_request_size: 8MiB}`).noticed(onProd + `batch.max_request_size: 8.0 MiB is more than gRPC servers accept by default (4.0 MiB): lower it, or raise the receiver's limit`),
		{file: "prod: {endpoint: 'c:4317'}", flags: Flags{"otel-profiles-compression": "none"}, environ: []string{EnvPrefix + "PROD_COMPRESSION=zstd"}, notice: true, answer: onProd + `compression: ` + EnvPrefix + `PROD_COMPRESSION (zstd) in the environment overrides --otel-profiles-compression (none)`},
		{file: "prod: {exporter: file, path: p}", flags: Flags{"otel-profiles-compression": "none"}, notice: true, answer: onProd + `--otel-profiles-compression: has no effect with exporter: file`},
		{environ: []string{"OTEL_EXPORTER_OTLP_TIMEOUT=10s"}, name: "otlp", notice: true, answer: onBuilt + `OTEL_EXPORTER_OTLP_TIMEOUT is ignored: got "10s", expected a whole number of milliseconds`},
		{environ: []string{"OTEL_RESOURCE_ATTRIBUTES=k8s.pod.name=p"}, name: "otlp", notice: true, answer: `OTEL_RESOURCE_ATTRIBUTES: ignoring k8s.pod.name: these attributes identify the profiled workload or host, and cannot be set`},
		{environ: []string{"OTEL_RESOURCE_ATTRIBUTES=team name=p"}, name: "otlp", notice: true, answer: `OTEL_RESOURCE_ATTRIBUTES: ignoring team name: expected names of at most 255 bytes without spaces`},
	}},
}

func TestMistakes(t *testing.T) {
	for _, group := range mistakes {
		for _, m := range group.cases {
			t.Run(group.title+"/"+m.written(), func(t *testing.T) {
				src := Sources{FileName: "config.yaml", Environ: m.environ, Flags: m.flags, Daemon: m.daemon}
				if m.file != "" {
					// A correct exporter next to the mistake stays usable.
					file := m.file
					if !m.global && !m.daemon && strings.HasPrefix(file, "prod:") {
						file += "\nbystander: {exporter: file, path: p}"
					}
					src.File = readYAML(t, exportersYAML(file))
				}
				set := Load(src)
				name := m.name
				if name == "" {
					name = "prod"
				}
				_, err := set.Exporter(name)
				switch {
				case m.global:
					require.Len(t, set.Problems(), 1)
					require.EqualError(t, set.Problems()[0], m.answer)
				case m.notice:
					require.NoError(t, err)
					require.Empty(t, set.Problems())
					require.Equal(t, []string{m.answer}, set.NoticesFor(name))
				case set.find(name) == nil:
					require.ErrorContains(t, err, "unknown exporter")
					require.EqualError(t, err, m.answerWithBystander(set))
				default:
					require.EqualError(t, err, m.answer)
					require.NotEmpty(t, set.Problems())
				}
				if set.find("bystander") != nil {
					bystander, err := set.Exporter("bystander")
					if m.flags == nil {
						require.NoError(t, err)
						require.Equal(t, TransportFile, bystander.Transport)
					}
				}
				for _, text := range append(texts(set.Problems()), notices(set)...) {
					require.NotContains(t, text, "s3cr3t")
					require.NotContains(t, text, "\n")
				}
			})
		}
	}
}

// answerWithBystander adds the correct exporter to the list of names in the message.
func (m mistake) answerWithBystander(set *Set) string {
	if set.find("bystander") == nil {
		return m.answer
	}
	return strings.Replace(m.answer, "the known exporters are ", "the known exporters are bystander, ", 1)
}

func texts(errs []error) []string {
	out := make([]string, 0, len(errs))
	for _, err := range errs {
		out = append(out, err.Error())
	}
	return out
}

// written returns the user's input as one line, for the test's name.
func (m mistake) written() string {
	var parts []string
	if m.file != "" {
		parts = append(parts, strings.TrimSpace(m.file))
	}
	parts = append(parts, m.environ...)
	for flag, value := range m.flags {
		parts = append(parts, "--"+flag+"="+string(value))
	}
	if m.name != "" {
		parts = append(parts, "--otel-profiles-exporter="+m.name)
	}
	return strings.Join(parts, "  ")
}

// All mistakes of an exporter are reported at once, in its keys and in its values.
func TestAllMistakesAtOnce(t *testing.T) {
	_, err := Load(Sources{FileName: "config.yaml", File: readYAML(t, exportersYAML("prod: {endpoint: 'c:4317', timeout: x, encodin: json}"))}).Exporter("prod")
	require.EqualError(t, err, onProd+`encodin (config.yaml): unknown key; the closest match is encoding; timeout (config.yaml): got "x", expected a duration with a unit, such as 30s, of at least 1ms`)
}

// A wrong flag is logged once, not for each exporter that it would have set.
func TestWrongFlagIsOneProblem(t *testing.T) {
	set := Load(Sources{File: readYAML(t, exportersYAML("{a: {endpoint: 'c:4317'}, b: {endpoint: 'c:4317'}}")), Flags: Flags{"otel-profiles-compression": "lz4"}})
	require.Len(t, set.Problems(), 1)
	for _, name := range set.Names() {
		_, err := set.Exporter(name)
		require.ErrorContains(t, err, "--otel-profiles-compression")
	}
}

// Long values do not fill a log.
func TestMessagesAreBounded(t *testing.T) {
	long := strings.Repeat("ä", 1<<16)
	for _, key := range []string{"exporter", "endpoint", "timeout", "otlp_version", "sampling", "resource", "attributes"} {
		set := Load(Sources{File: readYAML(t, exportersYAML("prod: {"+key+": '"+long+"'}"))})
		require.NotEmpty(t, set.Problems(), key)
		for _, text := range texts(set.Problems()) {
			require.Less(t, len(text), 500, key)
		}
	}
	_, err := Load(Sources{}).Exporter(long)
	require.Less(t, len(err.Error()), 500)
}
