package config

import (
	"net/url"
	"time"
)

// These are the transports of an exporter.
const (
	TransportGRPC = "otlp-grpc"
	TransportHTTP = "otlp-http"
	TransportFile = "file"
)

// FormatHistory is the format of a history. HistoryFolder is its folder in the preset history.
const (
	FormatHistory = "history"
	HistoryFolder = "/var/lib/ig-otel-profiles/history"
)

// Exporter holds the complete and valid settings of one exporter. Load fills in defaults and converts sizes to bytes. It does
// not read the files that the settings name.
type Exporter struct {
	// Name is the exporter's name as the user wrote it.
	Name string
	// Source is where the exporter is defined, for messages: a file's path, "environment" or "built in".
	Source string

	Transport        string  // exporter: one of the Transport constants
	Endpoint         string  // otlp-grpc: a gRPC target; otlp-http: the base URL
	ProfilesEndpoint string  // otlp-http: the whole URL, if set
	Written          Written // how the user wrote the endpoint
	Encoding         string  // otlp-http: proto or json
	Compression      string  // gzip, zstd or none
	Timeout          time.Duration
	Headers          []Header // in order, without duplicate keys
	Auth             Auth
	OAuth2           OAuth2
	ProxyURL         string // the HTTP proxy; if empty, the environment's proxy, if any
	Insecure         bool   // plain text, after the scheme of Endpoint was applied
	TLS              TLS
	Keepalive        Keepalive
	BalancerName     string
	Retry            Retry
	Queue            Queue
	Batch            Batch
	ShutdownTimeout  time.Duration
	OTLPVersion      string // "1.11", "1.9" or "1.8"

	// These settings control how a row becomes a sample, and which parts of a sample are exported. The comment of a bool field is
	// the setting that makes it true.
	Preset                string
	SampleShape           string // sum, timestamps or single
	Sampling              int    // 1 row in Sampling is taken, and its value is multiplied by Sampling; 1 takes all rows
	CollectStacks         bool   // collect_stacks: on
	Resource              []KeyValue
	Attributes            []KeyValue // attribute name = resource, sample, both or drop
	MaxValuesPerAttribute int        // 0: no limit
	PodLabels             []string
	ServiceName           string
	HostServiceName       string
	HostServices          int // maximum number of services outside containers; 0: one for all
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
	ProcMappings          bool // mappings_from_proc: true
	OffsetAddresses       bool // file_addresses: offset
	RawAddresses          bool // raw_addresses: true

	// These settings are for the file transport.
	Path      string
	Format    string // otlp-json, otlp-proto, pprof or history
	Rotation  Rotation
	Retention Retention
}

// These values of process_context select which process contexts are used.
const (
	ContextAll   = "all"
	ContextHosts = "hosts" // only of processes outside containers
	ContextNone  = "none"
)

// URL returns the URL that an otlp-http exporter posts to.
func (e *Exporter) URL() string {
	if e.ProfilesEndpoint != "" {
		return e.ProfilesEndpoint
	}
	return e.Endpoint + ProfilesPath
}

// Destination returns the exporter's target for messages: a path, or an address without secrets.
func (e *Exporter) Destination() string {
	switch {
	case e.Transport == TransportFile:
		return e.Path
	case e.ProfilesEndpoint != "":
		return withoutCredentials(e.ProfilesEndpoint)
	}
	return withoutCredentials(e.Endpoint)
}

// Proxy returns the configured HTTP proxy, or nil.
func (e *Exporter) Proxy() *url.URL {
	u, err := url.Parse(e.ProxyURL)
	if err != nil || e.ProxyURL == "" { // an invalid URL is refused when the settings are read
		return nil
	}
	return u
}

// Written describes how the user wrote the endpoint, for messages.
type Written struct {
	Scheme string // http, https, or "" if there was none
	Where  string // the source: a file, a flag or a variable
}

// KeyValue is one "key=value" entry of a list.
type KeyValue struct{ Key, Value string }

// Header is a header of every request (metadata in gRPC), or a parameter for a token server.
type Header struct {
	Key   string
	Value Secret
}

// Auth holds the credentials: a bearer token, a user and password for basic authentication, or nothing. Changed files take
// effect without a restart.
type Auth struct {
	BearerToken     Secret
	BearerTokenFile string
	Username        string
	Password        Secret
	PasswordFile    string
}

// OAuth2 holds the settings for bearer tokens from OAuth 2.0 client credentials (RFC 6749, section 4.4). The zero value
// disables OAuth 2.0. The secret's file is read again for each token.
type OAuth2 struct {
	TokenURL         Secret // the query can contain a secret
	ClientID         string
	ClientSecret     Secret
	ClientSecretFile string
	Scopes           []string
	EndpointParams   []Header // additional parameters for the token server
}

// TLS holds the client's settings for TLS connections.
type TLS struct {
	CAFile, CAPEM      string
	SystemCAs          bool // trust the system's certificates in addition to CAFile or CAPEM
	CertFile, CertPEM  string
	KeyFile            string
	KeyPEM             Secret
	ServerNameOverride string
	InsecureSkipVerify bool
	MinVersion         string // "1.2" or "1.3"
	ReloadInterval     time.Duration
}

// Keepalive holds the settings for gRPC pings. If Time is 0, there are no pings.
type Keepalive struct {
	Time                time.Duration
	Timeout             time.Duration
	PermitWithoutStream bool
}

// Retry holds the settings for the back-off after a failed request.
type Retry struct {
	Enabled             bool
	InitialInterval     time.Duration
	RandomizationFactor float64
	Multiplier          float64
	MaxInterval         time.Duration
	MaxElapsedTime      time.Duration // 0: no limit
}

// Queue holds the settings for requests that wait to be sent. Sizes are in bytes of uncompressed requests.
type Queue struct {
	Size         int64
	NumConsumers int
	Storage      string // a folder; if empty, memory only
	StorageSize  int64
	MaxAge       time.Duration
}

// Batch limits one request.
type Batch struct {
	Interval       time.Duration
	MaxRequestSize int64 // bytes, uncompressed
}

// Retention limits a history.
type Retention struct {
	MaxAge   time.Duration // 0: no limit
	MaxBytes int64
}

// History reports whether the exporter writes a history.
func (e *Exporter) History() bool { return e.Transport == TransportFile && e.Format == FormatHistory }

// Rotation limits the files of the file transport. 0 means no limit.
type Rotation struct {
	MaxMegabytes      int // of one file; not for pprof, which writes one file per request
	MaxTotalMegabytes int // of all files together
	MaxDays           int // age of an old file
	MaxBackups        int // number of old files
}
