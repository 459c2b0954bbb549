package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A setting is one key of an exporter, or one of Names. The parsing of files, variables and flags, the messages
// and the reference all come from the table of them: a new setting is added there.
type setting struct {
	Key        string   // the dotted path below the exporter's name: "tls.ca_file"
	Type       string   // as the reference calls it: "duration", "size", "text", …
	Default    string   // as a user would write it
	Example    string   // as it is written in YAML
	Doc        string   // one or two sentences for the reference
	Values     []string // the allowed ones, of a choice or of a list's pairs; nil: any
	Transports []string // those that use it; nil: all
	// OTel is the end of the names of the standard variables that set it for the built-in exporter:
	// what follows OTEL_EXPORTER_OTLP_ or OTEL_EXPORTER_OTLP_PROFILES_; "": none.
	OTel   string
	Flag   string // of the command line, without dashes; "": none
	Secret bool   // its values never show in a message

	quirk bool   // only for receivers that have a preset: deprecated, and not in the reference
	alias string // the key of the setting whose field this one sets as well
	empty string // what an empty text means, where that is not the default
	takes string // the end of messages about wrong values
	parse func(raw any) (any, error)
	set   func(owner, value any) // owner: *Exporter, or *Names
	get   func(owner any) any
}

var (
	onGRPC    = []string{TransportGRPC}
	onHTTP    = []string{TransportHTTP}
	onFile    = []string{TransportFile}
	onNetwork = []string{TransportGRPC, TransportHTTP}
)

// Bounds of batch.interval.
const (
	// MinInterval is the shortest.
	MinInterval = time.Second
	// MaxInterval is the longest: receivers refuse older data.
	MaxInterval = time.Hour
)

// Limits that are used in more than one place.
const (
	minRequestSize = 64 << 10
	minHistory     = 1 << 20
	maxSize        = 1 << 50
	noLimit        = math.MaxInt64
	grpcLimit      = 4 << 20 // what gRPC servers take in one message unless told otherwise
)

// table holds every setting. Where the Collector's OTLP exporter has a setting too, name and default
// are the same as there, unless a comment says why not
// (https://github.com/open-telemetry/opentelemetry-collector/tree/main/exporter/otlpexporter).
var table = []setting{
	enum("exporter", TransportGRPC, "How to send: OTLP over gRPC, OTLP over HTTP, or into a file.",
		[]string{TransportGRPC, TransportHTTP, TransportFile},
		func(e *Exporter) *string { return &e.Transport }).otel("PROTOCOL"),
	text("endpoint", "", "collector:4317", "Where to send. `otlp-grpc`: `host:port`, a URL, or a gRPC target. `otlp-http`: a URL, to which `/v1development/profiles` is added. A scheme decides on TLS and beats `insecure`.",
		func(e *Exporter) *string { return &e.Endpoint }).
		on(onNetwork).otel("ENDPOINT").flag("otel-profiles-endpoint"),
	text("profiles_endpoint", "", "https://collector:4318/otlp/profiles", "The whole URL. It is used as it stands, in place of `endpoint`.",
		func(e *Exporter) *string { return &e.ProfilesEndpoint }).on(onHTTP),
	enum("encoding", "proto", "The body's encoding.", []string{"proto", "json"},
		func(e *Exporter) *string { return &e.Encoding }).on(onHTTP).otel("PROTOCOL"),
	enum("compression", "gzip", "Compression of requests. An empty text is the same as `none`.", []string{"gzip", "zstd", "none"},
		func(e *Exporter) *string { return &e.Compression }).
		on(onNetwork).otel("COMPRESSION").flag("otel-profiles-compression").meansEmpty("none"),
	duration("timeout", "10s", "30s", "How long one attempt to send may take. There is always a limit: a receiver that hangs must not hold requests for ever.", time.Millisecond, noLimit,
		func(e *Exporter) *time.Duration { return &e.Timeout }).on(onNetwork).otel("TIMEOUT"),
	secretPairs("headers", `{x-scope-orgid: tenant-1}`, "Headers (gRPC: metadata) of every request. Names in lower case; a name with dots only in the `key=value` form.",
		func(e *Exporter) *[]Header { return &e.Headers }, parseHeaders).
		on(onNetwork).otel("HEADERS").flag("otel-profiles-headers"),

	text("auth.bearer_token", "", "secret", "Sent as `authorization: Bearer …`.",
		func(e *Exporter) *Secret { return &e.Auth.BearerToken }).on(onNetwork).secret(),
	text("auth.bearer_token_file", "", "/var/run/secrets/token", "A file that holds the bearer token. It is read again when it changes.",
		func(e *Exporter) *string { return &e.Auth.BearerTokenFile }).on(onNetwork),
	text("auth.username", "", "1234", "The user of basic authentication.",
		func(e *Exporter) *string { return &e.Auth.Username }).on(onNetwork),
	text("auth.password", "", "secret", "The password of basic authentication.",
		func(e *Exporter) *Secret { return &e.Auth.Password }).on(onNetwork).secret(),
	text("auth.password_file", "", "/var/run/secrets/password", "A file that holds the password. It is read again when it changes.",
		func(e *Exporter) *string { return &e.Auth.PasswordFile }).on(onNetwork),

	text("oauth2.token_url", "", "https://login.example.com/oauth2/token", "Where to get bearer tokens by OAuth 2.0's client credentials. One is fetched when it is needed, and again before it ends or when the receiver refuses it. The certificates of `tls` are trusted there, too.",
		func(e *Exporter) *Secret { return &e.OAuth2.TokenURL }).on(onNetwork),
	text("oauth2.client_id", "", "profiles", "The client's name there.",
		func(e *Exporter) *string { return &e.OAuth2.ClientID }).on(onNetwork),
	text("oauth2.client_secret", "", "secret", "The client's secret.",
		func(e *Exporter) *Secret { return &e.OAuth2.ClientSecret }).on(onNetwork).secret(),
	text("oauth2.client_secret_file", "", "/var/run/secrets/oauth2", "A file that holds the client's secret. It is read again for each token.",
		func(e *Exporter) *string { return &e.OAuth2.ClientSecretFile }).on(onNetwork),
	list("oauth2.scopes", `[profiles.write]`, "Scopes to ask for.",
		func(e *Exporter) *[]string { return &e.OAuth2.Scopes }).on(onNetwork),
	secretPairs("oauth2.endpoint_params", `{audience: otlp}`, "What the token server wants to be sent besides.",
		func(e *Exporter) *[]Header { return &e.OAuth2.EndpointParams }, parseSecretPairs).on(onNetwork),

	text("proxy_url", "", "http://proxy:3128", "An HTTP proxy to send through, and to fetch tokens through. Without it HTTPS_PROXY, HTTP_PROXY and NO_PROXY of the environment count.",
		func(e *Exporter) *string { return &e.ProxyURL }).on(onNetwork),
	boolean("insecure", "false", "Plain text, where `endpoint` has no scheme. Credentials go over plain text only where this is `true`, or to this machine.",
		func(e *Exporter) *bool { return &e.Insecure }).
		on(onNetwork).otel("INSECURE").flag("otel-profiles-insecure"),
	boolean("tls.insecure", "false", "The same as `insecure`.",
		func(e *Exporter) *bool { return &e.Insecure }).on(onNetwork).sameAs("insecure"),
	text("tls.ca_file", "", "/etc/ssl/collector-ca.pem", "Certificates to trust, in place of the system's.",
		func(e *Exporter) *string { return &e.TLS.CAFile }).on(onNetwork).otel("CERTIFICATE"),
	text("tls.ca_pem", "", "-----BEGIN CERTIFICATE----- …", "The same, as PEM text.",
		func(e *Exporter) *string { return &e.TLS.CAPEM }).on(onNetwork),
	boolean("tls.include_system_ca_certs_pool", "false", "Trust the system's certificates as well as those of `tls.ca_file` or `tls.ca_pem`.",
		func(e *Exporter) *bool { return &e.TLS.SystemCAs }).on(onNetwork),
	text("tls.cert_file", "", "/etc/ssl/client.pem", "The client's certificate, with its chain.",
		func(e *Exporter) *string { return &e.TLS.CertFile }).on(onNetwork).otel("CLIENT_CERTIFICATE"),
	text("tls.cert_pem", "", "-----BEGIN CERTIFICATE----- …", "The same, as PEM text.",
		func(e *Exporter) *string { return &e.TLS.CertPEM }).on(onNetwork),
	text("tls.key_file", "", "/etc/ssl/client-key.pem", "The client's private key.",
		func(e *Exporter) *string { return &e.TLS.KeyFile }).on(onNetwork).otel("CLIENT_KEY"),
	text("tls.key_pem", "", "-----BEGIN PRIVATE KEY----- …", "The same, as PEM text.",
		func(e *Exporter) *Secret { return &e.TLS.KeyPEM }).on(onNetwork).secret(),
	text("tls.server_name_override", "", "collector.example.com", "The name that the server's certificate must have, where it is not the endpoint's.",
		func(e *Exporter) *string { return &e.TLS.ServerNameOverride }).on(onNetwork),
	boolean("tls.insecure_skip_verify", "false", "Do not verify the server's certificate. Anyone on the way can read and change what is sent.",
		func(e *Exporter) *bool { return &e.TLS.InsecureSkipVerify }).on(onNetwork),
	enum("tls.min_version", "1.2", "The lowest TLS version to speak.", []string{"1.2", "1.3"},
		func(e *Exporter) *string { return &e.TLS.MinVersion }).on(onNetwork),
	duration("tls.reload_interval", "0s", "1h", "A new connection reads certificate files again if they have changed. This is the least time between two looks.", 0, noLimit,
		func(e *Exporter) *time.Duration { return &e.TLS.ReloadInterval }).on(onNetwork),

	// Off, unlike in the Collector's exporter. By default, a gRPC server closes the connection of a
	// client that pings more often than every five minutes; and where pings are on, a receiver that
	// answers one of them too late loses the connection (https://github.com/grpc/grpc-go/blob/master/Documentation/keepalive.md).
	duration("keepalive.time", "0s", "5m", "After how long without traffic to ask whether the connection lives; 0 turns that off. Below 10s counts as 10s. Many receivers close the connection of a client that asks more often than every five minutes.", 0, noLimit,
		func(e *Exporter) *time.Duration { return &e.Keepalive.Time }).on(onGRPC),
	duration("keepalive.timeout", "10s", "20s", "How long to wait for the answer before the connection is closed.", time.Millisecond, noLimit,
		func(e *Exporter) *time.Duration { return &e.Keepalive.Timeout }).on(onGRPC),
	boolean("keepalive.permit_without_stream", "false", "Ask also while no request is under way.",
		func(e *Exporter) *bool { return &e.Keepalive.PermitWithoutStream }).on(onGRPC),
	enum("balancer_name", "round_robin", "gRPC's load balancing among the endpoint's addresses.", []string{"round_robin", "pick_first"},
		func(e *Exporter) *string { return &e.BalancerName }).on(onGRPC),

	boolean("retry_on_failure.enabled", "true", "Send a request again after a failure that may pass.",
		func(e *Exporter) *bool { return &e.Retry.Enabled }).on(onNetwork),
	duration("retry_on_failure.initial_interval", "5s", "1s", "How long to wait after the first failure.", time.Millisecond, noLimit,
		func(e *Exporter) *time.Duration { return &e.Retry.InitialInterval }).on(onNetwork),
	number("retry_on_failure.randomization_factor", "0.5", "0.2", "How far a wait may be from its planned length, as a share of it.", 0, 1,
		func(e *Exporter) *float64 { return &e.Retry.RandomizationFactor }).on(onNetwork),
	number("retry_on_failure.multiplier", "1.5", "2", "By how much each wait is longer than the one before.", 1, 100,
		func(e *Exporter) *float64 { return &e.Retry.Multiplier }).on(onNetwork),
	duration("retry_on_failure.max_interval", "30s", "1m", "The longest wait.", time.Millisecond, noLimit,
		func(e *Exporter) *time.Duration { return &e.Retry.MaxInterval }).on(onNetwork),
	duration("retry_on_failure.max_elapsed_time", "0s", "5m", "After how long to give a request up; 0 leaves that to `sending_queue`.", 0, noLimit,
		func(e *Exporter) *time.Duration { return &e.Retry.MaxElapsedTime }).on(onNetwork),

	size("sending_queue.queue_size", "64MiB", "128MiB", "How many bytes of requests may wait. When it is full, the oldest go. The Collector counts requests here, this exporter bytes.", minRequestSize, maxSize,
		func(e *Exporter) *int64 { return &e.Queue.Size }),
	integer("sending_queue.num_consumers", "10", "2", "How many requests may be under way at once.", 1, 1000,
		func(e *Exporter) *int { return &e.Queue.NumConsumers }),
	text("sending_queue.storage", "", "/var/lib/ig-otel-profiles", "A folder in which the queue survives a restart, for this exporter alone. What it holds is sent to the endpoint, and with the headers and credentials, that the exporter has by then. Empty: memory only.",
		func(e *Exporter) *string { return &e.Queue.Storage }).on(onNetwork),
	size("sending_queue.storage_size", "1GiB", "256MiB", "How many bytes the folder may hold.", minRequestSize, maxSize,
		func(e *Exporter) *int64 { return &e.Queue.StorageSize }).on(onNetwork),
	duration("sending_queue.max_age", "1h", "15m", "What has waited for longer is dropped: receivers refuse old data.", time.Second, noLimit,
		func(e *Exporter) *time.Duration { return &e.Queue.MaxAge }),

	duration("batch.interval", "10s", "30s", "How long rows are summed up before they are sent.", MinInterval, MaxInterval,
		func(e *Exporter) *time.Duration { return &e.Batch.Interval }),
	size("batch.max_request_size", "3.5MiB", "1MiB", "The most bytes of one request, uncompressed. More is split. gRPC servers take 4 MiB unless told otherwise.", minRequestSize, 1<<30,
		func(e *Exporter) *int64 { return &e.Batch.MaxRequestSize }),
	duration("shutdown_timeout", "5s", "15s", "How long the end of a run may wait for what is not sent yet.", 0, 10*time.Minute,
		func(e *Exporter) *time.Duration { return &e.ShutdownTimeout }),

	enum("preset", "", "Other defaults, for one receiver. Each key of a preset can be set otherwise.", Presets(),
		func(e *Exporter) *string { return &e.Preset }),
	enum("otlp_version", "1.11", "The wire layout. `1.9` and `1.8` are for receivers from before OTLP 1.10 and 1.9; none of them understands another. In JSON and in pprof files they are the same.", []string{"1.11", "1.9", "1.8"},
		func(e *Exporter) *string { return &e.OTLPVersion }),
	enum("sample_shape", "auto", "`sum`: one value for all events of a stack. `timestamps`: a timestamp per event, for events of value 1. `single`: one value and one timestamp per sample. `auto`: what the gadget asks for with `profiles.timestamps`, else `sum`.",
		[]string{"auto", "sum", "timestamps", "single"},
		func(e *Exporter) *string { return &e.SampleShape }),
	either("attribute_values", "native", "string", "`string` writes numbers and booleans as text, for receivers that read nothing else.",
		func(e *Exporter) *bool { return &e.StringAttributes }).ofPresets(),
	ratio("sampling", "1/1", "1/10", "`1/N` takes one row in N, at random, with N times its value. Rows of which the last one counts (`profiles.aggregation: last`) are all taken.",
		func(e *Exporter) *int { return &e.Sampling }),
	onOff("collect_stacks", "Have the gadget collect stacks where its own default is not to, as if `--collect-ustack` and `--collect-kstack` were typed. `off` leaves it to the flags. With several exporters one `on` is enough.",
		func(e *Exporter) *bool { return &e.CollectStacks }),
	pairs("resource", `["deployment.environment.name=prod"]`, "Attributes to add to every resource.",
		func(e *Exporter) *[]KeyValue { return &e.Resource }),
	pairs("attributes", `["process.pid=sample", "thread.name=drop"]`, "Where an attribute goes: `resource`, `sample`, `both` or `drop`.",
		func(e *Exporter) *[]KeyValue { return &e.Attributes }, "resource", "sample", "both", "drop"),
	either("attribute_keys", "convention", "label", "`label` writes `_` for what is no letter, digit or `_` in a name, as in `k8s_pod_name`; `service.name` stays. An attribute of `resource` takes the place of one whose name it meets; others that meet get a number at the end.",
		func(e *Exporter) *bool { return &e.LabelKeys }).ofPresets(),
	integer("max_resource_attributes", "25", "20", "Attributes of a resource. The least important are left out, and counted.", 1, 1000,
		func(e *Exporter) *int { return &e.MaxResourceAttributes }),
	integer("max_sample_attributes", "32", "6", "Attributes of a sample. What is over it is left out.", 0, 1000,
		func(e *Exporter) *int { return &e.MaxSampleAttributes }),
	integer("max_values_per_attribute", "1000", "200", "Distinct values of one attribute, which are forgotten every sixty intervals at the latest. What is over it is sent without that attribute, and counted; 0 is no limit.", 0, math.MaxInt32,
		func(e *Exporter) *int { return &e.MaxValuesPerAttribute }),
	list("pod_labels", `[app, tier]`, "Pod labels to send, as `k8s.pod.label.<key>`.",
		func(e *Exporter) *[]string { return &e.PodLabels }),
	text("service_name", "", "checkout", "The `service.name` of everything.",
		func(e *Exporter) *string { return &e.ServiceName }),
	text("host_service_name", "host", "node", "The `service.name` of what runs in no container.",
		func(e *Exporter) *string { return &e.HostServiceName }),
	integer("host_services", "50", "0", "How many services to tell apart outside containers: the systemd unit, or else the executable. What had a name in the last hour keeps it; where those are fewer in an interval, its largest others get theirs, up to four times that many within the hour; the rest is `host_service_name`. 0, or a `host_service_name`, makes one service of all.", 0, 100_000,
		func(e *Exporter) *int { return &e.HostServices }),
	boolean("service_from_labels", "true", "Take `service.name` and `service.version` from the `app.kubernetes.io` labels. Whoever may label a pod can name itself then.",
		func(e *Exporter) *bool { return &e.ServiceFromLabels }),
	enum("process_context", ContextAll, "Take `service.name`, `service.namespace`, `service.instance.id`, `service.version` and `deployment.environment.name` from the context that an OpenTelemetry SDK publishes in its process, so that profiles have the service of the traces. `hosts`: outside containers only. `none`: not at all. Pod labels and the settings `service_name` and `resource` go first, and `host_services: 0` ends it outside containers. Whoever may run a program can name it then.", []string{ContextAll, ContextHosts, ContextNone},
		func(e *Exporter) *string { return &e.ProcessContext }),
	boolean("compat_names", "false", "Write the attribute and profile names that Inspektor Gadget's own operator writes.",
		func(e *Exporter) *bool { return &e.CompatNames }),
	boolean("host_id", "false", "Send `host.id`: the host's machine ID, or its name where there is none.",
		func(e *Exporter) *bool { return &e.HostID }),
	either("scope_name", "image", "profile", "The name of the scope: the gadget's image, or the profile's name.",
		func(e *Exporter) *bool { return &e.ProfileScope }).ofPresets(),
	either("profile_name", "plain", "label", "`label` sends the profile's name, where it is not the type of its period, as the attribute `__name__` of every sample, and no period: for a receiver that otherwise takes the type for the name.",
		func(e *Exporter) *bool { return &e.NameLabel }).ofPresets(),
	either("incomplete_stacks", "plain", "marked", "`marked` puts a frame `[incomplete]` at the root of stacks whose outermost function is none that programs and threads begin with. Their share is in the closing log line and a metric in any case.",
		func(e *Exporter) *bool { return &e.MarkIncomplete }),
	either("unnamed_functions", "none", "file", "`file` gives a frame without a name a function called after its file, such as `[libc.so.6]`, for receivers that do not show frames without one. A receiver's symbolizer then leaves it alone.",
		func(e *Exporter) *bool { return &e.NameUnnamed }),
	either("function_table", "single", "double", "`double` writes each function twice in a row and refers to the second, for a receiver that takes the entry before the one that is meant.",
		func(e *Exporter) *bool { return &e.DoubleFunctions }),
	either("frame_type_default", "none", "native", "The type of frames whose type is not known.",
		func(e *Exporter) *bool { return &e.NativeDefault }).ofPresets(),
	boolean("mappings_from_proc", "true", "Find out which files the frames of a program are in: the path, `process.executable.build_id.htlhash`, and the GNU and Go build ID. Frames of Go functions get the type `go`.",
		func(e *Exporter) *bool { return &e.ProcMappings }),
	either("file_addresses", "virtual", "offset", "What the address of a frame is whose file is known: the address that the file's symbol tables have, or the offset in the file.",
		func(e *Exporter) *bool { return &e.OffsetAddresses }),
	boolean("raw_addresses", "false", "Where the file of a frame is not known, send the address that it had in its process. It means nothing without the process, and gives away where its code lay.",
		func(e *Exporter) *bool { return &e.RawAddresses }),
	either("mappings", "all", "htlhash", "`htlhash` leaves out mappings without `process.executable.build_id.htlhash`; their frames keep names and addresses.",
		func(e *Exporter) *bool { return &e.HashedMappings }).ofPresets(),
	enum("kernel_addresses", "offset", "`offset` writes kernel addresses relative to the kernel's start. `raw` gives away where the kernel lies in memory.", []string{"offset", "raw"},
		func(e *Exporter) *string { return &e.KernelAddresses }),
	boolean("image_digest", "false", "Send `container.image.repo_digests`.",
		func(e *Exporter) *bool { return &e.ImageDigest }),

	text("path", "", "profiles.jsonl", "The file to write. `history`: the folder.",
		func(e *Exporter) *string { return &e.Path }).on(onFile),
	enum("format", "otlp-json", "`otlp-json`: a request per line. `otlp-proto`: requests with their length in front. `pprof`: a file per request. `history`: a folder that `profile history` answers from.", []string{"otlp-json", "otlp-proto", "pprof", FormatHistory},
		func(e *Exporter) *string { return &e.Format }).on(onFile),
	duration("retention.max_age", "24h", "72h", "How long a history keeps what it has; 0 is no limit. Only `format: history`.", 0, noLimit,
		func(e *Exporter) *time.Duration { return &e.Retention.MaxAge }).on(onFile),
	size("retention.max_bytes", "1GiB", "4GiB", "How many bytes a history takes on disk. The oldest go first. Only `format: history`.", minHistory, maxSize,
		func(e *Exporter) *int64 { return &e.Retention.MaxBytes }).on(onFile),
	integer("rotation.max_megabytes", "100", "10", "The size at which a new file begins; 0 is no limit. A file of `pprof` is one request.", 0, 1<<20,
		func(e *Exporter) *int { return &e.Rotation.MaxMegabytes }).on(onFile),
	integer("rotation.max_total_megabytes", "1000", "10000", "The size of all files together. The oldest go first; 0 is no limit.", 0, 1<<20,
		func(e *Exporter) *int { return &e.Rotation.MaxTotalMegabytes }).on(onFile),
	integer("rotation.max_days", "0", "7", "After how many days an old file is deleted; 0 is never.", 0, 36500,
		func(e *Exporter) *int { return &e.Rotation.MaxDays }).on(onFile),
	integer("rotation.max_backups", "0", "10", "How many old files to keep; 0 is as many as there is room for.", 0, 1<<20,
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

// binding completes a setting with the functions that parse its value and that get and set its field. O is
// Exporter, or Names.
func binding[O, T any](s setting, field func(*O) *T, parse func(any) (T, error)) setting {
	s.parse = func(raw any) (any, error) { return parse(raw) }
	s.set = func(owner, v any) { *field(owner.(*O)) = v.(T) }
	s.get = func(owner any) any { return *field(owner.(*O)) }
	return s
}

func text[O any, T ~string](key, def, example, doc string, field func(*O) *T) setting {
	s := setting{Key: key, Type: "text", Default: def, Example: example, Doc: doc, takes: "a text"}
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

// either is a choice of two values that is stored as a boolean: false for no, true for yes.
func either(key, no, yes, doc string, field func(*Exporter) *bool) setting {
	values := []string{no, yes}
	s := setting{Key: key, Type: "choice", Default: no, Example: yes, Doc: doc, Values: values, takes: "one of " + strings.Join(values, ", ")}
	return binding(s, field, func(raw any) (bool, error) {
		v, err := parseChoice(raw, values, no)
		return v == yes, err
	})
}

// onOff is a choice of on, the default, and off, which is stored as a boolean. Readers of YAML 1.1, Helm's among them, make booleans of
// these words.
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
	if high == math.MaxInt32 {
		s.takes = fmt.Sprintf("a whole number of at least %d", low)
	}
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
	s := setting{Key: key, Type: "list", Example: example, Doc: doc, takes: "a list, or texts with commas between them"}
	return binding(s, field, parseList)
}

// pairs is a list of key=value. With values, each value must be one of these.
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

const takesPairs = `a list of "key=value", such texts with commas between them, or a map`

// secretPairs is a list of key=value whose values are secrets.
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
