package config

import (
	"net/url"
	"time"
)

// The transports of an exporter.
const (
	TransportGRPC = "otlp-grpc"
	TransportHTTP = "otlp-http"
	TransportFile = "file"
)

// FormatHistory is the format of a history, and HistoryFolder is its folder in the preset history.
const (
	FormatHistory = "history"
	HistoryFolder = "/var/lib/ig-otel-profiles/history"
)

// Exporter is one exporter's settings, complete and valid, as Load returns them: defaults are filled in,
// sizes are in bytes. Files are named by their paths and not read yet.
type Exporter struct {
	// Name is as the user wrote it.
	Name string
	// Source is the source of the exporter, for messages: a file's path, "environment" or "built
	// in".
	Source string

	Transport        string  // exporter: one of the Transport constants
	Endpoint         string  // otlp-grpc: a gRPC target; otlp-http: the base URL
	ProfilesEndpoint string  // otlp-http: the whole URL, if set
	Written          Written // how the endpoint was written
	Encoding         string  // otlp-http: proto or json
	Compression      string  // gzip, zstd or none
	Timeout          time.Duration
	Headers          []Header // in order; a key may come once only
	Auth             Auth
	OAuth2           OAuth2
	ProxyURL         string // of an HTTP proxy; empty: the one that the environment names, if any
	Insecure         bool   // plain text; the scheme of Endpoint has already been taken into account
	TLS              TLS
	Keepalive        Keepalive
	BalancerName     string
	Retry            Retry
	Queue            Queue
	Batch            Batch
	ShutdownTimeout  time.Duration
	OTLPVersion      string // "1.11", "1.9" or "1.8"

	// These settings decide how a row becomes a sample, and which parts are exported.
	Preset                string
	SampleShape           string // sum, timestamps or single
	Sampling              int    // 1 row in Sampling is taken, its value times Sampling; 1: all
	CollectStacks         bool   // collect_stacks: on
	Resource              []KeyValue
	Attributes            []KeyValue // attribute name = resource, sample, both or drop
	MaxValuesPerAttribute int        // 0: no limit
	PodLabels             []string
	ServiceName           string
	HostServiceName       string
	HostServices          int // services to tell apart outside containers; 0: one for all
	ServiceFromLabels     bool
	ProcessContext        string // ContextAll, ContextHosts or ContextNone
	CompatNames           bool
	KernelAddresses       string // offset or raw
	ImageDigest           bool
	StringAttributes      bool // attribute_values: string
	LabelKeys             bool // attribute_keys: label
	MaxResourceAttributes int
	MaxSampleAttributes   int
	HostID                bool
	ProfileScope          bool // scope_name: profile
	NameLabel             bool // profile_name: label
	MarkIncomplete        bool // incomplete_stacks: marked
	NameUnnamed           bool // unnamed_functions: file
	DoubleFunctions       bool // function_table: double
	NativeDefault         bool // frame_type_default: native
	HashedMappings        bool // mappings: htlhash
	ProcMappings          bool // mappings_from_proc
	OffsetAddresses       bool // file_addresses: offset
	RawAddresses          bool // raw_addresses

	// The file transport.
	Path      string
	Format    string // otlp-json, otlp-proto, pprof or history
	Rotation  Rotation
	Retention Retention
}

// These are the values of process_context, which choose the contexts that count.
const (
	ContextAll   = "all"
	ContextHosts = "hosts" // of processes outside containers
	ContextNone  = "none"
)

// URL returns the URL that an otlp-http exporter posts to.
func (e *Exporter) URL() string {
	if e.ProfilesEndpoint != "" {
		return e.ProfilesEndpoint
	}
	return e.Endpoint + ProfilesPath
}

// Destination returns the target of the exporter, for messages: a path or an address without secrets.
func (e *Exporter) Destination() string {
	switch {
	case e.Transport == TransportFile:
		return e.Path
	case e.ProfilesEndpoint != "":
		return withoutCredentials(e.ProfilesEndpoint)
	}
	return withoutCredentials(e.Endpoint)
}

// Proxy returns the HTTP proxy of the settings, nil without one.
func (e *Exporter) Proxy() *url.URL {
	u, err := url.Parse(e.ProxyURL)
	if err != nil || e.ProxyURL == "" { // a wrong one is refused when the settings are read
		return nil
	}
	return u
}

// Written is how the endpoint was written, for messages about it.
type Written struct {
	Scheme string // http, https, or "" if there was none
	Where  string // a file, a flag or a variable
}

// KeyValue is one "key=value" of a setting that is a list of them.
type KeyValue struct{ Key, Value string }

// Header is one header (gRPC: metadata) of every request, or one parameter that a token server is sent.
type Header struct {
	Key   string
	Value Secret
}

// Auth holds the credentials: a bearer token, or user and password of basic authentication, or nothing.
// A change of the files takes effect without a restart.
type Auth struct {
	BearerToken     Secret
	BearerTokenFile string
	Username        string
	Password        Secret
	PasswordFile    string
}

// OAuth2 has the settings for bearer tokens by OAuth 2.0's client credentials (RFC 6749, section 4.4). The
// zero value means that OAuth 2.0 is not used. The file is read again for each token.
type OAuth2 struct {
	TokenURL         Secret // its query can hold one
	ClientID         string
	ClientSecret     Secret
	ClientSecretFile string
	Scopes           []string
	EndpointParams   []Header // sent to the token server in addition
}

// TLS is the client's side of a TLS connection.
type TLS struct {
	CAFile, CAPEM      string
	SystemCAs          bool // trust the system's in addition to CAFile or CAPEM
	CertFile, CertPEM  string
	KeyFile            string
	KeyPEM             Secret
	ServerNameOverride string
	InsecureSkipVerify bool
	MinVersion         string // "1.2" or "1.3"
	ReloadInterval     time.Duration
}

// Keepalive is the interval of gRPC's pings. A Time of 0 turns them off.
type Keepalive struct {
	Time                time.Duration
	Timeout             time.Duration
	PermitWithoutStream bool
}

// Retry is the back-off of a failed request.
type Retry struct {
	Enabled             bool
	InitialInterval     time.Duration
	RandomizationFactor float64
	Multiplier          float64
	MaxInterval         time.Duration
	MaxElapsedTime      time.Duration // 0: no limit
}

// Queue holds requests that wait to be sent. Sizes are in bytes of uncompressed requests.
type Queue struct {
	Size         int64
	NumConsumers int
	Storage      string // folder; empty: memory only
	StorageSize  int64
	MaxAge       time.Duration
}

// Batch bounds what one request carries.
type Batch struct {
	Interval       time.Duration
	MaxRequestSize int64 // bytes, uncompressed
}

// Retention bounds a history.
type Retention struct {
	MaxAge   time.Duration // 0: no limit
	MaxBytes int64
}

// History reports whether the exporter writes a history.
func (e *Exporter) History() bool { return e.Transport == TransportFile && e.Format == FormatHistory }

// Rotation bounds the files that the file transport writes; 0 means no limit.
type Rotation struct {
	MaxMegabytes      int // of one file; not for pprof, where a file is one request
	MaxTotalMegabytes int // of all files together
	MaxDays           int // age of an old file
	MaxBackups        int // number of old files
}
