package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A setting is one key of an exporter or of Names. The tables of settings define how files, variables and flags are parsed, and
// the messages and the reference. Add a new setting to a table.
type setting struct {
	Key        string   // the dotted path below the exporter's name: "tls.ca_file"
	Type       string   // the type in the reference: "duration", "size", "string", …
	Default    string   // as a user would write it
	Example    string   // in YAML
	Doc        string   // the description in the reference
	Values     []string // the allowed values of a choice or of a list's pairs; nil: any
	Transports []string // the transports that use it; nil: all
	// OTel is the suffix of the standard variables for this setting of the built-in exporter. Their names begin with
	// OTEL_EXPORTER_OTLP_ or OTEL_EXPORTER_OTLP_PROFILES_. "" means none.
	OTel   string
	Flag   string // the flag's name, without dashes; "": none
	Secret bool   // messages never contain its value

	quirk bool   // only presets set it: deprecated for users, and not in the reference
	alias string // the key of another setting with the same field
	empty string // the meaning of an empty text, if it is not the default
	takes string // the valid values, for messages
	parse func(raw any) (any, error)
	set   func(owner, value any) // owner is *Exporter or *Names
	get   func(owner any) any
}

var (
	onGRPC    = []string{TransportGRPC}
	onHTTP    = []string{TransportHTTP}
	onFile    = []string{TransportFile}
	onNetwork = []string{TransportGRPC, TransportHTTP}
)

// These constants limit batch.interval.
const (
	// MinInterval is the shortest interval.
	MinInterval = time.Second
	// MaxInterval is the longest interval. Receivers refuse older data.
	MaxInterval = time.Hour
)

// Several settings share these limits.
const (
	minRequestSize = 64 << 10
	minHistory     = 1 << 20
	maxSize        = 1 << 50
	noLimit        = math.MaxInt64
	grpcLimit      = 4 << 20 // the default limit of gRPC servers for one message
)

// table holds every setting. Settings of the Collector's OTLP exporter have the same names and defaults here, unless a comment
// gives a reason (https://github.com/open-telemetry/opentelemetry-collector/tree/main/exporter/otlpexporter).
var table = []setting{
	enum("exporter", TransportGRPC, "The transport: OTLP over gRPC, OTLP over HTTP, or files.",
		[]string{TransportGRPC, TransportHTTP, TransportFile},
		func(e *Exporter) *string { return &e.Transport }).otel("PROTOCOL"),
	text("endpoint", "", "collector:4317", "The receiver's address. For `otlp-grpc`: `host:port`, a URL, or a gRPC target. For `otlp-http`: a URL, to which `/v1development/profiles` is appended. The scheme `http` turns TLS off, and `https` turns TLS on. Both schemes override `insecure`.",
		func(e *Exporter) *string { return &e.Endpoint }).
		on(onNetwork).otel("ENDPOINT").flag("otel-profiles-endpoint"),
	text("profiles_endpoint", "", "https://collector:4318/otlp/profiles", "The complete URL for profiles. Requests go to this URL instead of `endpoint`. Nothing is appended to the URL. If `endpoint` comes from a source with higher precedence, this setting has no effect.",
		func(e *Exporter) *string { return &e.ProfilesEndpoint }).on(onHTTP),
	enum("encoding", "proto", "The encoding of the request body.", []string{"proto", "json"},
		func(e *Exporter) *string { return &e.Encoding }).on(onHTTP).otel("PROTOCOL"),
	enum("compression", "gzip", "The compression of requests. An empty string means `none`.", []string{"gzip", "zstd", "none"},
		func(e *Exporter) *string { return &e.Compression }).
		on(onNetwork).otel("COMPRESSION").flag("otel-profiles-compression").meansEmpty("none"),
	duration("timeout", "10s", "30s", "The time limit for one attempt to send a request. You cannot turn this limit off. Without a limit, a receiver that does not respond would block a request forever.", time.Millisecond, noLimit,
		func(e *Exporter) *time.Duration { return &e.Timeout }).on(onNetwork).otel("TIMEOUT"),
	secretPairs("headers", `{x-scope-orgid: tenant-1}`, "Headers (gRPC: metadata) to send with every request. The names are converted to lower case.",
		func(e *Exporter) *[]Header { return &e.Headers }, parseHeaders).
		on(onNetwork).otel("HEADERS").flag("otel-profiles-headers"),

	text("auth.bearer_token", "", "secret", "The token to send in the header `authorization: Bearer …`.",
		func(e *Exporter) *Secret { return &e.Auth.BearerToken }).on(onNetwork).secret(),
	text("auth.bearer_token_file", "", "/var/run/secrets/token", "The file that contains the bearer token. The file is read for each request.",
		func(e *Exporter) *string { return &e.Auth.BearerTokenFile }).on(onNetwork),
	text("auth.username", "", "1234", "The user name for basic authentication.",
		func(e *Exporter) *string { return &e.Auth.Username }).on(onNetwork),
	text("auth.password", "", "secret", "The password for basic authentication.",
		func(e *Exporter) *Secret { return &e.Auth.Password }).on(onNetwork).secret(),
	text("auth.password_file", "", "/var/run/secrets/password", "The file that contains the password. The file is read for each request.",
		func(e *Exporter) *string { return &e.Auth.PasswordFile }).on(onNetwork),

	text("oauth2.token_url", "", "https://login.example.com/oauth2/token", "The token endpoint for the OAuth 2.0 client credentials grant. The exporter fetches a token when a request needs one. The exporter renews the token before the token expires, or when the receiver rejects the token. The settings `tls.ca_file`, `tls.ca_pem` and `tls.include_system_ca_certs_pool` also apply to this endpoint.",
		func(e *Exporter) *Secret { return &e.OAuth2.TokenURL }).on(onNetwork),
	text("oauth2.client_id", "", "profiles", "The client ID.",
		func(e *Exporter) *string { return &e.OAuth2.ClientID }).on(onNetwork),
	text("oauth2.client_secret", "", "secret", "The client secret.",
		func(e *Exporter) *Secret { return &e.OAuth2.ClientSecret }).on(onNetwork).secret(),
	text("oauth2.client_secret_file", "", "/var/run/secrets/oauth2", "The file that contains the client secret. The file is read each time a token is fetched.",
		func(e *Exporter) *string { return &e.OAuth2.ClientSecretFile }).on(onNetwork),
	list("oauth2.scopes", `[profiles.write]`, "The scopes to request.",
		func(e *Exporter) *[]string { return &e.OAuth2.Scopes }).on(onNetwork),
	secretPairs("oauth2.endpoint_params", `{audience: otlp}`, "Additional parameters for token requests.",
		func(e *Exporter) *[]Header { return &e.OAuth2.EndpointParams }, parseSecretPairs).on(onNetwork),

	text("proxy_url", "", "http://proxy:3128", "The HTTP proxy for all requests, including token requests. If this setting is empty, the environment variables `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` apply. With `exporter: otlp-grpc`, `HTTP_PROXY` has no effect.",
		func(e *Exporter) *string { return &e.ProxyURL }).on(onNetwork),
	boolean("insecure", "false", "Send requests in plain text if `endpoint` has no scheme. The exporter sends credentials to another machine in plain text only if this setting is `true`.",
		func(e *Exporter) *bool { return &e.Insecure }).
		on(onNetwork).otel("INSECURE").flag("otel-profiles-insecure"),
	boolean("tls.insecure", "false", "Another name for `insecure`.",
		func(e *Exporter) *bool { return &e.Insecure }).on(onNetwork).sameAs("insecure"),
	text("tls.ca_file", "", "/etc/ssl/collector-ca.pem", "The PEM file that contains the certificates to trust. These certificates replace the system's certificates.",
		func(e *Exporter) *string { return &e.TLS.CAFile }).on(onNetwork).otel("CERTIFICATE"),
	text("tls.ca_pem", "", "-----BEGIN CERTIFICATE----- …", "The certificates to trust, as PEM text. These certificates replace the system's certificates.",
		func(e *Exporter) *string { return &e.TLS.CAPEM }).on(onNetwork),
	boolean("tls.include_system_ca_certs_pool", "false", "Trust the system's certificates in addition to `tls.ca_file` or `tls.ca_pem`.",
		func(e *Exporter) *bool { return &e.TLS.SystemCAs }).on(onNetwork),
	text("tls.cert_file", "", "/etc/ssl/client.pem", "The PEM file that contains the client certificate and its chain.",
		func(e *Exporter) *string { return &e.TLS.CertFile }).on(onNetwork).otel("CLIENT_CERTIFICATE"),
	text("tls.cert_pem", "", "-----BEGIN CERTIFICATE----- …", "The client certificate and its chain, as PEM text.",
		func(e *Exporter) *string { return &e.TLS.CertPEM }).on(onNetwork),
	text("tls.key_file", "", "/etc/ssl/client-key.pem", "The PEM file that contains the client's private key.",
		func(e *Exporter) *string { return &e.TLS.KeyFile }).on(onNetwork).otel("CLIENT_KEY"),
	text("tls.key_pem", "", "-----BEGIN PRIVATE KEY----- …", "The client's private key, as PEM text.",
		func(e *Exporter) *Secret { return &e.TLS.KeyPEM }).on(onNetwork).secret(),
	text("tls.server_name_override", "", "collector.example.com", "The name to expect in the server's certificate. The default is the endpoint's host name.",
		func(e *Exporter) *string { return &e.TLS.ServerNameOverride }).on(onNetwork),
	boolean("tls.insecure_skip_verify", "false", "Do not verify the server's certificate. Anyone on the network path can then read and change the data.",
		func(e *Exporter) *bool { return &e.TLS.InsecureSkipVerify }).on(onNetwork),
	enum("tls.min_version", "1.2", "The lowest TLS version to accept.", []string{"1.2", "1.3"},
		func(e *Exporter) *string { return &e.TLS.MinVersion }).on(onNetwork),
	duration("tls.reload_interval", "0s", "1h", "The minimum time between two reads of the certificate files. With `otlp-grpc`, the exporter reads these files when it opens a connection. With `otlp-http`, it reads these files for each request.", 0, noLimit,
		func(e *Exporter) *time.Duration { return &e.TLS.ReloadInterval }).on(onNetwork),

	// Pings are off, as in the Collector's OTLP exporter. By default, a gRPC server closes the connection of a client that
	// pings more often than every five minutes (https://github.com/grpc/grpc-go/blob/master/Documentation/keepalive.md). With
	// pings, a receiver that answers too late loses the connection.
	duration("keepalive.time", "0s", "5m", "Ping the receiver after this time without traffic. `0s` turns pings off. Times shorter than 10 s count as 10 s. By default, gRPC servers close the connection of a client that pings more than once in 5 minutes.", 0, noLimit,
		func(e *Exporter) *time.Duration { return &e.Keepalive.Time }).on(onGRPC),
	duration("keepalive.timeout", "10s", "20s", "Close the connection if the receiver does not answer a ping within this time.", time.Millisecond, noLimit,
		func(e *Exporter) *time.Duration { return &e.Keepalive.Timeout }).on(onGRPC),
	boolean("keepalive.permit_without_stream", "false", "Also send pings while no request is in flight.",
		func(e *Exporter) *bool { return &e.Keepalive.PermitWithoutStream }).on(onGRPC),
	enum("balancer_name", "round_robin", "The gRPC load balancing policy for the endpoint's addresses.", []string{"round_robin", "pick_first"},
		func(e *Exporter) *string { return &e.BalancerName }).on(onGRPC),

	boolean("retry_on_failure.enabled", "true", "Retry a request after a temporary failure. With `false`, the request is dropped instead.",
		func(e *Exporter) *bool { return &e.Retry.Enabled }).on(onNetwork),
	duration("retry_on_failure.initial_interval", "5s", "1s", "The time to wait after the first failure.", time.Millisecond, noLimit,
		func(e *Exporter) *time.Duration { return &e.Retry.InitialInterval }).on(onNetwork),
	number("retry_on_failure.randomization_factor", "0.5", "0.2", "The random variation of each wait, as a fraction of the wait. With `0.5`, waits vary by up to 50 %.", 0, 1,
		func(e *Exporter) *float64 { return &e.Retry.RandomizationFactor }).on(onNetwork),
	number("retry_on_failure.multiplier", "1.5", "2", "The factor by which the wait grows after each failure.", 1, 100,
		func(e *Exporter) *float64 { return &e.Retry.Multiplier }).on(onNetwork),
	duration("retry_on_failure.max_interval", "30s", "1m", "The maximum wait between two attempts, before the random variation. If the receiver requests a longer wait, the exporter waits as requested, but at most 5 minutes.", time.Millisecond, noLimit,
		func(e *Exporter) *time.Duration { return &e.Retry.MaxInterval }).on(onNetwork),
	duration("retry_on_failure.max_elapsed_time", "0s", "5m", "The time limit for all attempts to send a request. After this time, the request is dropped. With `0s`, only the limits of `sending_queue` apply.", 0, noLimit,
		func(e *Exporter) *time.Duration { return &e.Retry.MaxElapsedTime }).on(onNetwork),

	size("sending_queue.queue_size", "64MiB", "128MiB", "The maximum size of the queue in memory, in bytes. When the queue is full, the exporter drops the oldest requests of the workload that uses the most bytes in the queue.", minRequestSize, maxSize,
		func(e *Exporter) *int64 { return &e.Queue.Size }),
	integer("sending_queue.num_consumers", "10", "2", "The maximum number of requests that are in flight at the same time. With `exporter: file`, this setting has no effect, because requests are written one at a time.", 1, 1000,
		func(e *Exporter) *int { return &e.Queue.NumConsumers }),
	text("sending_queue.storage", "", "/var/lib/ig-otel-profiles", "The folder in which the queue is stored, so that requests survive a restart. Each exporter needs its own folder. After a restart, stored requests are sent with the current endpoint, headers and credentials. Without a folder, the queue is only in memory.",
		func(e *Exporter) *string { return &e.Queue.Storage }).on(onNetwork),
	size("sending_queue.storage_size", "1GiB", "256MiB", "The maximum size of the folder `sending_queue.storage`, in bytes. When the folder is full, the exporter drops the oldest requests of the workload that uses the most bytes in the folder.", minRequestSize, maxSize,
		func(e *Exporter) *int64 { return &e.Queue.StorageSize }).on(onNetwork),
	duration("sending_queue.max_age", "1h", "15m", "The maximum age of a request. Older requests are dropped, because receivers reject old data. This setting has no effect with `format: history`.", time.Second, noLimit,
		func(e *Exporter) *time.Duration { return &e.Queue.MaxAge }),

	duration("batch.interval", "10s", "30s", "The length of an interval. At the end of each interval, the operator sends the profiles of this interval. If the memory for this interval is nearly full, the operator sends the profiles earlier.", MinInterval, MaxInterval,
		func(e *Exporter) *time.Duration { return &e.Batch.Interval }),
	size("batch.max_request_size", "3.5MiB", "1MiB", "The maximum size of a request before compression, in bytes. Larger requests are split. By default, gRPC servers accept requests of up to 4 MiB.", minRequestSize, 1<<30,
		func(e *Exporter) *int64 { return &e.Batch.MaxRequestSize }),
	duration("shutdown_timeout", "5s", "15s", "The time limit for sending the rest of the queue at the end of `ig run`. After this time, requests in memory are dropped. Requests in `sending_queue.storage` are kept. A daemon has [different time limits](../concepts.md#the-end-of-a-run).", 0, 10*time.Minute,
		func(e *Exporter) *time.Duration { return &e.ShutdownTimeout }),

	enum("preset", "", "The [preset](#presets) with the defaults for your receiver. You can override each of these defaults.", Presets(),
		func(e *Exporter) *string { return &e.Preset }),
	enum("otlp_version", "1.11", "The OTLP version of requests. For a receiver that uses OTLP 1.9, set `1.9`. For an older receiver, set `1.8`. If the version is wrong, the receiver refuses or misreads requests. JSON and pprof data are the same for all versions.", []string{"1.11", "1.9", "1.8"},
		func(e *Exporter) *string { return &e.OTLPVersion }),
	enum("sample_shape", "auto", "The shape of a sample. `sum`: one value for all events with the same stack and attributes. `timestamps`: only timestamps, one for each event. If the unit is `count`, an event with the value N adds N timestamps. `single`: one value and one timestamp per sample. `auto`: the shape that the gadget requests with `profiles.timestamps`, or else `sum`.",
		[]string{"auto", "sum", "timestamps", "single"},
		func(e *Exporter) *string { return &e.SampleShape }),
	either("attribute_values", "native", "string", "`string` writes numbers and booleans as text, for receivers that read only text.",
		func(e *Exporter) *bool { return &e.StringAttributes }).ofPresets(),
	ratio("sampling", "1/1", "1/10", "With `1/N`, the operator keeps about one row in N, selected at random, and multiplies the row's value by N. All other rows are dropped. This setting has no effect on single events with `profiles.aggregation: last`.",
		func(e *Exporter) *int { return &e.Sampling }),
	onOff("collect_stacks", "With `on`, the operator turns on `--collect-ustack` and `--collect-kstack` if these flags are off by default. With `off`, the operator does not change these flags. If a run uses several exporters, `on` for one of these exporters is sufficient.",
		func(e *Exporter) *bool { return &e.CollectStacks }),
	pairs("resource", `["deployment.environment.name=prod"]`, "Attributes to add to every resource. These values replace the operator's values for the same attributes.",
		func(e *Exporter) *[]KeyValue { return &e.Resource }),
	pairs("attributes", `["process.pid=sample", "thread.name=drop"]`, "Where to send each listed attribute: in the resource, in the sample or in both. `drop` leaves the attribute out.",
		func(e *Exporter) *[]KeyValue { return &e.Attributes }, "resource", "sample", "both", "drop"),
	either("attribute_keys", "convention", "label", "`label` replaces all characters except letters, digits and `_` with `_`, as in `k8s_pod_name`. `service.name` is kept. On a name clash, the attribute of `resource` wins, and others get a numeric suffix.",
		func(e *Exporter) *bool { return &e.LabelKeys }).ofPresets(),
	integer("max_resource_attributes", "25", "20", "The maximum number of attributes per resource. If a resource has more attributes, the least important attributes are left out. `dropped_attributes_count` is the number of attributes that were left out.", 1, 1000,
		func(e *Exporter) *int { return &e.MaxResourceAttributes }),
	integer("max_sample_attributes", "32", "6", "The maximum number of attributes per sample. Further attributes are left out.", 0, 1000,
		func(e *Exporter) *int { return &e.MaxSampleAttributes }),
	integer("max_values_per_attribute", "1000", "200", "The maximum number of distinct values per attribute. Samples and resources with further values are sent without the attribute, and the log shows their number. Attributes that identify the workload or the machine, such as `k8s.pod.name`, have no limit. The count of values is reset at least every 60 intervals. `0` means no limit.", 0, math.MaxInt32,
		func(e *Exporter) *int { return &e.MaxValuesPerAttribute }).taking("a whole number of at least 0"),
	list("pod_labels", `[app, tier]`, "The pod labels to send as `k8s.pod.label.<key>`.",
		func(e *Exporter) *[]string { return &e.PodLabels }),
	text("service_name", "", "checkout", "The `service.name` of all profiles.",
		func(e *Exporter) *string { return &e.ServiceName }),
	text("host_service_name", "host", "node", "The `service.name` of processes outside containers.",
		func(e *Exporter) *string { return &e.HostServiceName }),
	integer("host_services", "50", "0", "The maximum number of named services outside containers per interval. Each service is a [systemd unit or an executable](attributes.md#services-outside-containers). If there are more services, the services that were named in the last hour keep their names. Of the other services, the operator names the services with the highest values. Within an hour, the number of named services cannot exceed 4 times this maximum. All remaining services are sent as `host_service_name`. With `0`, all processes outside containers are one service. `0` is the default if `service_name` or `host_service_name` is set.", 0, 100_000,
		func(e *Exporter) *int { return &e.HostServices }),
	boolean("service_from_labels", "true", "Take `service.name` and `service.version` from the pod's `app.kubernetes.io` labels. Anyone who can label a pod can then choose the pod's service name.",
		func(e *Exporter) *bool { return &e.ServiceFromLabels }),
	enum("process_context", ContextAll, "The process contexts to read. An OpenTelemetry SDK can publish a context in the memory of the process. The context supplies `service.name`, `service.namespace`, `service.instance.id`, `service.version` and `deployment.environment.name`, so profiles have the same service as traces. `all`: read all contexts. `hosts`: read contexts only outside containers. `none`: read no contexts. Pod labels and the setting `resource` take precedence over contexts. With `service_name`, no contexts are read. With `host_services: 0`, contexts outside containers are not read. If contexts are read, anyone who can run a program can choose the program's service name.", []string{ContextAll, ContextHosts, ContextNone},
		func(e *Exporter) *string { return &e.ProcessContext }),
	boolean("compat_names", "false", "Use the [attribute names, periods and units](attributes.md#names-of-inspektor-gadgets-own-operator) of Inspektor Gadget's own operator.",
		func(e *Exporter) *bool { return &e.CompatNames }),
	boolean("host_id", "false", "Send the attribute `host.id`. The value is the host's machine ID. If the host has no machine ID, the value is the node name or else the host name.",
		func(e *Exporter) *bool { return &e.HostID }),
	either("scope_name", "image", "profile", "The name of the instrumentation scope: the gadget's image, or the profile's name.",
		func(e *Exporter) *bool { return &e.ProfileScope }).ofPresets(),
	either("profile_name", "plain", "label", "`label` sends the profile's name as the attribute `__name__` of every sample, and no period, if the name differs from the period's type. This is for receivers that take the period's type for the name.",
		func(e *Exporter) *bool { return &e.NameLabel }).ofPresets(),
	either("incomplete_stacks", "plain", "marked", "`marked` adds the root frame `[incomplete]` to stacks that do not end at a known entry point. `plain` adds this frame only to frame-pointer stacks that replace a whole stack. In both cases, one of the last log lines of a run shows the percentage of rows with incomplete stacks. The metric `ig_otel_profiles_rows_stack_incomplete` shows the number of these rows.",
		func(e *Exporter) *bool { return &e.MarkIncomplete }),
	either("unnamed_functions", "none", "file", "With `file`, a frame without a function name gets the name of the frame's file instead, such as `[libc.so.6]`. Use `file` for receivers that hide frames without names. A symbolizer in the receiver cannot replace such a file name with the function's name.",
		func(e *Exporter) *bool { return &e.NameUnnamed }),
	either("function_table", "single", "double", "With `double`, the function table contains each function twice, and frames refer to the second entry. Use `double` for a receiver that mistakenly reads the preceding entry.",
		func(e *Exporter) *bool { return &e.DoubleFunctions }),
	either("frame_type_default", "none", "native", "The type of frames whose own type is unknown.",
		func(e *Exporter) *bool { return &e.NativeDefault }).ofPresets(),
	boolean("mappings_from_proc", "true", "Find the file of each user frame in `/proc`. Send the file's path, GNU build ID, Go build ID and `process.executable.build_id.htlhash`.",
		func(e *Exporter) *bool { return &e.ProcMappings }),
	either("file_addresses", "virtual", "offset", "The form of a frame's address if the frame's file is known. `virtual`: the address as in the file's symbol table. `offset`: the offset in the file.",
		func(e *Exporter) *bool { return &e.OffsetAddresses }),
	boolean("raw_addresses", "false", "If a frame's file is unknown, send the frame's address in the memory of the process. Such an address is useless without the process, and reveals the memory layout of the process. This setting has no effect on whole stacks.",
		func(e *Exporter) *bool { return &e.RawAddresses }),
	either("mappings", "all", "htlhash", "`htlhash` leaves out mappings without `process.executable.build_id.htlhash`. Their frames keep names and addresses.",
		func(e *Exporter) *bool { return &e.HashedMappings }).ofPresets(),
	enum("kernel_addresses", "offset", "The form of kernel addresses. `offset`: relative to the start of the code of the kernel or of the module, or 0 in other code, such as BPF programs. `raw`: real addresses, which reveal where the kernel is in memory. Kernel frames from the unwinder have no addresses.", []string{"offset", "raw"},
		func(e *Exporter) *string { return &e.KernelAddresses }),
	boolean("image_digest", "false", "Send the attribute `container.image.repo_digests`.",
		func(e *Exporter) *bool { return &e.ImageDigest }),

	text("path", "", "profiles.jsonl", "The file to write. With `format: history`, the folder to write. With `format: pprof`, an existing folder, or the prefix of all file paths.",
		func(e *Exporter) *string { return &e.Path }).on(onFile),
	enum("format", "otlp-json", "The format of the files. `otlp-json`: one request per line. `otlp-proto`: requests, each preceded by its length as a 4-byte big-endian number. `pprof`: one file per request. `history`: a folder that `profile history` reads.", []string{"otlp-json", "otlp-proto", "pprof", FormatHistory},
		func(e *Exporter) *string { return &e.Format }).on(onFile),
	duration("retention.max_age", "24h", "72h", "The maximum age of requests in a history. Older requests are deleted when the exporter writes. `0s` means no limit.", 0, noLimit,
		func(e *Exporter) *time.Duration { return &e.Retention.MaxAge }).on(onFile),
	size("retention.max_bytes", "1GiB", "4GiB", "The maximum size of a history on disk, in bytes. The oldest requests are deleted first.", minHistory, maxSize,
		func(e *Exporter) *int64 { return &e.Retention.MaxBytes }).on(onFile),
	integer("rotation.max_megabytes", "100", "10", "The maximum size of a file in MiB. If the next request would exceed this size, the exporter starts a new file. A file that cannot be renamed, such as standard output, becomes larger. `0` means no limit. With `format: pprof`, this setting has no effect, because each request is a separate file. With `format: history`, no setting of `rotation` has an effect.", 0, 1<<20,
		func(e *Exporter) *int { return &e.Rotation.MaxMegabytes }).on(onFile),
	integer("rotation.max_total_megabytes", "1000", "10000", "The maximum size of all files together, in MiB. The oldest files are deleted first. `0` means no limit.", 0, 1<<20,
		func(e *Exporter) *int { return &e.Rotation.MaxTotalMegabytes }).on(onFile),
	integer("rotation.max_days", "0", "7", "The number of days after which old files are deleted. `0` means no age limit.", 0, 36500,
		func(e *Exporter) *int { return &e.Rotation.MaxDays }).on(onFile),
	integer("rotation.max_backups", "0", "10", "The maximum number of old files. The oldest files are deleted first. `0` means no limit.", 0, 1<<20,
		func(e *Exporter) *int { return &e.Rotation.MaxBackups }).on(onFile),
}

// byKey finds a setting by its dotted key.
var byKey = func() map[string]*setting {
	keys := make(map[string]*setting, len(table))
	for i := range table {
		keys[table[i].Key] = &table[i]
	}
	return keys
}()

// binding adds the functions that parse a setting's value, and that get and set its field. O is Exporter or Names.
func binding[O, T any](s setting, field func(*O) *T, parse func(any) (T, error)) setting {
	s.parse = func(raw any) (any, error) { return parse(raw) }
	s.set = func(owner, v any) { *field(owner.(*O)) = v.(T) }
	s.get = func(owner any) any { return *field(owner.(*O)) }
	return s
}

func text[O any, T ~string](key, def, example, doc string, field func(*O) *T) setting {
	s := setting{Key: key, Type: "string", Default: def, Example: example, Doc: doc, takes: "a string"}
	return binding(s, field, func(raw any) (T, error) {
		v, err := parseText(raw)
		return T(v), err
	})
}

func boolean[O any](key, def, doc string, field func(*O) *bool) setting {
	example := strconv.FormatBool(def != "true")
	return binding(setting{Key: key, Type: "boolean", Default: def, Example: example, Doc: doc, takes: "true or false"}, field, parseBool)
}

func enum(key, def, doc string, values []string, field func(*Exporter) *string) setting {
	s := setting{Key: key, Type: "choice", Default: def, Example: values[len(values)-1], Doc: doc, Values: values, takes: "one of " + strings.Join(values, ", ")}
	return binding(s, field, func(raw any) (string, error) { return parseChoice(raw, values, def) })
}

// either makes a choice of two values. It is stored as a boolean: false for no, true for yes.
func either(key, no, yes, doc string, field func(*Exporter) *bool) setting {
	values := []string{no, yes}
	s := setting{Key: key, Type: "choice", Default: no, Example: yes, Doc: doc, Values: values, takes: "one of " + strings.Join(values, ", ")}
	return binding(s, field, func(raw any) (bool, error) {
		v, err := parseChoice(raw, values, no)
		return v == yes, err
	})
}

// onOff makes a choice of on (the default) and off. It is stored as a boolean. YAML 1.1 readers like Helm convert these words
// to booleans.
func onOff(key, doc string, field func(*Exporter) *bool) setting {
	values := []string{"on", "off"}
	s := setting{Key: key, Type: "choice", Default: "on", Example: "off", Doc: doc, Values: values, takes: "one of on, off"}
	return binding(s, field, func(raw any) (bool, error) {
		if on, err := parseBool(raw); err == nil {
			return on, nil
		}
		v, err := parseChoice(raw, values, "on")
		return v == "on", err
	})
}

func duration[O any](key, def, example, doc string, low, high time.Duration, field func(*O) *time.Duration) setting {
	s := setting{Key: key, Type: "duration", Default: def, Example: example, Doc: doc, takes: "a duration with a unit, such as " + example}
	if low > 0 {
		s.takes += ", of at least " + short(low)
	}
	if high < noLimit {
		s.takes += ", of at most " + short(high)
	}
	return binding(s, field, func(raw any) (time.Duration, error) { return parseDuration(raw, low, high) })
}

func size[O any](key, def, example, doc string, low, high int64, field func(*O) *int64) setting {
	s := setting{Key: key, Type: "size", Default: def, Example: example, Doc: doc, takes: "a size in bytes, such as " + example + ", from " + formatSize(low) + " to " + formatSize(high)}
	return binding(s, field, func(raw any) (int64, error) { return parseSize(raw, low, high) })
}

func integer(key, def, example, doc string, low, high int, field func(*Exporter) *int) setting {
	s := setting{Key: key, Type: "integer", Default: def, Example: example, Doc: doc, takes: fmt.Sprintf("a whole number from %d to %d", low, high)}
	return binding(s, field, func(raw any) (int, error) { return parseNumber(raw, strconv.Atoi, low, high) })
}

func number(key, def, example, doc string, low, high float64, field func(*Exporter) *float64) setting {
	s := setting{Key: key, Type: "number", Default: def, Example: example, Doc: doc, takes: fmt.Sprintf("a number from %v to %v", low, high)}
	return binding(s, field, func(raw any) (float64, error) {
		return parseNumber(raw, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }, low, high)
	})
}

func ratio(key, def, example, doc string, field func(*Exporter) *int) setting {
	s := setting{Key: key, Type: "1/N", Default: def, Example: example, Doc: doc, takes: "1/N with a whole number N from 1 to 1000000, such as " + example}
	return binding(s, field, parseRatio)
}

func list[O any](key, example, doc string, field func(*O) *[]string) setting {
	s := setting{Key: key, Type: "list", Example: example, Doc: doc, takes: "a list, or a comma-separated string"}
	return binding(s, field, parseList)
}

// pairs makes a list of key=value. If values are given, each value must be one of them.
func pairs(key, example, doc string, field func(*Exporter) *[]KeyValue, values ...string) setting {
	s := setting{Key: key, Type: "key=value list", Example: example, Doc: doc, Values: values, takes: takesPairs}
	if values != nil {
		s.takes += ", each value one of " + strings.Join(values, ", ")
	}
	return binding(s, field, func(raw any) ([]KeyValue, error) {
		kvs, err := parsePairs(raw)
		for _, kv := range kvs {
			if values != nil && !slices.Contains(values, kv.Value) {
				return nil, &gotError{got: fmt.Sprintf("%q for %q", clip(kv.Value), clip(kv.Key))}
			}
		}
		return kvs, err
	})
}

const takesPairs = `a list of "key=value", comma-separated "key=value" pairs, or a map`

// secretPairs makes a list of key=value with secret values.
func secretPairs(key, example, doc string, field func(*Exporter) *[]Header, parse func(any) ([]Header, error)) setting {
	s := setting{Key: key, Type: "key=value list", Example: example, Doc: doc, Secret: true, takes: takesPairs}
	return binding(s, field, parse)
}

func (s setting) on(transports []string) setting { s.Transports = transports; return s }
func (s setting) otel(suffix string) setting     { s.OTel = suffix; return s }
func (s setting) flag(name string) setting       { s.Flag = name; return s }
func (s setting) ofPresets() setting             { s.quirk = true; return s }
func (s setting) secret() setting                { s.Secret = true; return s }
func (s setting) sameAs(key string) setting      { s.alias = key; return s }
func (s setting) meansEmpty(v string) setting    { s.empty = v; return s }
func (s setting) taking(what string) setting     { s.takes = what; return s }
