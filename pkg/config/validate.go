package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"reflect"
	"slices"
	"strings"
)

// validate checks settings that depend on each other, and completes the endpoint. It adds to the draft's problems and notices.
func (d *draft) validate() {
	d.warnUnused()
	local := true
	switch d.Transport {
	case TransportGRPC:
		local = d.grpcEndpoint()
	case TransportHTTP:
		local = d.httpEndpoint()
	case TransportFile:
		if d.Path == "" {
			d.addValueError("path", "is missing: set the output file, such as path: profiles.jsonl")
		}
		d.onlyFor("retention.", d.Format == FormatHistory, "has no effect without format: history")
		d.onlyFor("rotation.", d.Format != FormatHistory, "has no effect with format: history: set the limits under retention instead")
	}
	if d.Transport != TransportFile {
		d.credentials(local)
		d.exclusive()
		d.proxy()
		d.certificates()
	}
	d.sizes()
	d.attributes()
}

// onlyFor adds a notice for each setting below a prefix that the user set but that is not used.
func (d *draft) onlyFor(prefix string, used bool, notice string) {
	for i := range table {
		if key := table[i].Key; !used && strings.HasPrefix(key, prefix) && d.written(key) {
			d.addNotice(key, "%s", notice)
		}
	}
}

// written reports whether the user set the key somewhere, even to its default. A preset does not count.
func (d *draft) written(key string) bool { return d.strongest(key).layer >= fromFile }

// has reports whether a setting's value is not the zero value.
func (d *draft) has(key string) bool { return !reflect.ValueOf(byKey[key].get(&d.Exporter)).IsZero() }

func (d *draft) grpcEndpoint() (local bool) {
	if d.Endpoint == "" && d.isBuiltIn() {
		d.Endpoint = "http://localhost:" + grpcPort
	}
	a, problem := takeGRPC(d.Endpoint)
	if problem != "" {
		d.addValueError("endpoint", "%s", problem)
		return true
	}
	d.Endpoint = a.target
	d.scheme(a, "endpoint")
	if a.port == httpPort {
		d.addNotice("endpoint", "port %s is usually for OTLP over HTTP: if so, set exporter: otlp-http; OTLP over gRPC usually uses port %s", httpPort, grpcPort)
	}
	return a.local
}

func (d *draft) httpEndpoint() (local bool) {
	base, whole := d.strongest("endpoint").layer, d.strongest("profiles_endpoint").layer
	wholeKey := "profiles_endpoint"
	switch {
	case base == fromOTelProfiles && whole < fromOTelProfiles:
		// By the specification, OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT is the whole URL: no path is appended.
		d.ProfilesEndpoint, d.Endpoint, wholeKey = d.Endpoint, "", "endpoint"
	case base > whole:
		// endpoint comes from a stronger source than profiles_endpoint, so profiles_endpoint must not override it. The weaker
		// source's URL is for another receiver.
		d.ProfilesEndpoint = ""
	}
	var a address
	var problem string
	if d.ProfilesEndpoint == "" && d.Endpoint == "" && d.isBuiltIn() {
		d.Endpoint = "http://localhost:" + httpPort
	}
	if d.Endpoint != "" || d.ProfilesEndpoint == "" {
		if a, problem = takeURL(d.Endpoint, false); problem != "" {
			d.addValueError("endpoint", "%s", problem)
			return true
		}
		d.Endpoint = a.target
	}
	if d.ProfilesEndpoint != "" {
		if a, problem = takeURL(d.ProfilesEndpoint, true); problem != "" {
			d.addValueError(wholeKey, "%s", problem)
			return true
		}
		d.ProfilesEndpoint = a.target
		d.scheme(a, wholeKey)
		return a.local
	}
	d.scheme(a, "endpoint")
	if a.port == grpcPort {
		d.addNotice("endpoint", "port %s is usually for OTLP over gRPC: if so, set exporter: otlp-grpc; OTLP over HTTP usually uses port %s", grpcPort, httpPort)
	}
	return a.local
}

func (d *draft) isBuiltIn() bool { return strings.EqualFold(d.Name, BuiltIn) }

// scheme sets Insecure by the endpoint's scheme, if it has one. key is the endpoint's setting.
func (d *draft) scheme(a address, key string) {
	d.Written = Written{Scheme: a.scheme, Where: d.where(key)}
	if a.scheme == "" {
		return
	}
	plain := a.scheme == "http"
	if d.written("insecure") && d.Insecure && !plain {
		d.addNotice("insecure", "has no effect: the endpoint begins with https://")
	}
	d.Insecure = plain
}

// warnUnused adds a notice for each setting that the transport does not use, and for each setting that only presets should set.
func (d *draft) warnUnused() {
	for i := range table {
		s := &table[i]
		if s.quirk && d.written(s.Key) {
			d.addNotice(s.Key, "is deprecated: set preset to %s instead, which includes this setting", strings.Join(presetsWith(s.Key), " or "))
		}
		if s.alias != "" || s.Transports == nil || slices.Contains(s.Transports, d.Transport) {
			continue
		}
		// Standard variables and presets get no notice, because they are not written for this exporter alone.
		switch v := d.strongest(s.Key); v.layer {
		case fromFile, fromEnv:
			d.addNotice(v.key, "has no effect with exporter: %s, only with %s", d.Transport, strings.Join(s.Transports, ", "))
		case fromFlag:
			d.addNotice(v.origin, "has no effect with exporter: %s", d.Transport)
		}
	}
}

// credentialHeaders lists headers that contain credentials although their names do not show it.
var credentialHeaders = []string{"x-honeycomb-team"}

// CredentialHeader reports whether a header's value is probably a credential. It only checks the name, which must be in lower
// case.
func CredentialHeader(name string) bool {
	if slices.Contains(credentialHeaders, name) {
		return true
	}
	for _, part := range []string{"auth", "token", "apikey", "secret", "password", "cookie", "credential", "session", "signature"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	parts := strings.FieldsFunc(name, func(r rune) bool { return r == '-' || r == '_' || r == '.' })
	return slices.ContainsFunc(parts, func(part string) bool {
		return slices.Contains([]string{"key", "dsn", "jwt", "bearer", "license", "pwd"}, part)
	})
}

func (d *draft) credentials(local bool) {
	a := &d.Auth
	bearer := a.BearerToken != "" || a.BearerTokenFile != ""
	password := a.Password != "" || a.PasswordFile != ""
	oauth2 := d.oauth2()
	switch {
	case bearer && (password || a.Username != ""):
		d.addError("auth", d.where("auth.username"), "got a bearer token and a user: set only one of them")
	case a.Username != "" && !password:
		d.addValueError("auth.username", "has no password: set auth.password or auth.password_file, too")
	case a.Username == "" && password:
		d.addValueError("auth.password", "has no user: set auth.username, too")
	case oauth2 && (bearer || password):
		d.addError("oauth2", d.where("oauth2.token_url"), "is set together with auth: set only one of them")
	case strings.Contains(a.Username, ":"):
		d.addValueError("auth.username", "got a name with ':', which basic authentication does not allow")
	}
	for _, key := range []string{"auth.bearer_token", "auth.password", "auth.username"} {
		if secret := reflect.ValueOf(byKey[key].get(&d.Exporter)).String(); strings.ContainsAny(secret, "\r\n\x00") {
			d.addValueError(key, "got a value with a line break or a zero byte; a line break at the end of a secret is the usual cause")
		}
	}
	carrier := ""
	switch {
	case bearer:
		carrier = "auth.bearer_token"
	case password:
		carrier = "auth.password"
	case d.OAuth2.TokenURL != "":
		carrier = "oauth2.token_url"
	}
	for _, h := range d.Headers {
		if h.Key == "authorization" && carrier != "" {
			d.addValueError("headers", "got the header \"authorization\" together with %s: set only one of them", carrier)
		}
		if carrier == "" && CredentialHeader(h.Key) {
			carrier = "headers"
		}
	}
	notice, refusal := "", ""
	if d.remoteProxy() && !strings.HasPrefix(d.Endpoint, "unix:") {
		local, notice, refusal = false, "the proxy of proxy_url and to ", " to the proxy of proxy_url"
	}
	switch {
	case carrier == "" || !d.Insecure || local:
	case d.strongest("insecure").value == true: // http:// allows plain text for the data only
		d.addNotice(carrier, "credentials are sent in plain text to %s%s: anyone on the network path can read them", notice, d.Destination())
	default:
		d.addValueError(carrier, "would be sent in plain text%s: use TLS (https:// in the endpoint), or set insecure: true if everyone on the network path may read it", refusal)
	}
}

// oauth2 checks the settings of OAuth 2.0, and reports whether any of them is set.
func (d *draft) oauth2() bool {
	o := &d.OAuth2
	keys := slices.DeleteFunc(keysBelow("oauth2."), func(key string) bool { return !d.written("oauth2." + key) })
	if len(keys) == 0 {
		return false
	}
	for _, needed := range []struct{ key, orKey, what string }{
		{"oauth2.token_url", "", "the URL of the token endpoint, such as https://login.example.com/oauth2/token"},
		{"oauth2.client_id", "", "the client ID"},
		{"oauth2.client_secret", "oauth2.client_secret_file", "it, or oauth2.client_secret_file"},
	} {
		if !d.has(needed.key) && (needed.orKey == "" || !d.has(needed.orKey)) {
			d.addError(needed.key, d.where("oauth2."+keys[0]), "is missing although oauth2.%s is set: set %s", keys[0], needed.what)
		}
	}
	if o.TokenURL == "" {
		return true
	}
	u, problem := takeURL(string(o.TokenURL), true)
	switch {
	case problem != "":
		d.addValueError("oauth2.token_url", "%s", strings.Replace(problem, "auth.username and auth.password", "oauth2.client_id and oauth2.client_secret", 1))
	case u.scheme == "http" && (!u.local || d.remoteProxy()):
		d.addValueError("oauth2.token_url", "got a URL with http://, which would show the client secret to everyone on the network path: use https://")
	}
	return true
}

// remoteProxy reports whether all requests pass through a proxy on another machine, even requests to a local endpoint.
func (d *draft) remoteProxy() bool {
	u := d.Proxy()
	return u != nil && !isLocal(u.Host)
}

func (d *draft) proxy() {
	u := d.Proxy()
	switch {
	case d.ProxyURL == "":
	case u == nil || u.Scheme != "http" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Port() != "" && !isPort(u.Port()):
		d.addValueError("proxy_url", "got %s, expected the URL of an HTTP proxy, such as http://proxy:3128; with a TLS endpoint, the proxy sees only encrypted data", describe(withoutCredentials(d.ProxyURL)))
	case d.Transport == TransportGRPC && strings.HasPrefix(d.Endpoint, "unix:"):
		d.addNotice("proxy_url", "has no effect: the endpoint is a socket of this machine")
	}
}

// exclusive refuses combinations of settings that exclude each other.
func (d *draft) exclusive() {
	for _, pair := range [][2]string{
		{"auth.bearer_token", "auth.bearer_token_file"}, {"auth.password", "auth.password_file"}, {"oauth2.client_secret", "oauth2.client_secret_file"},
		{"tls.ca_pem", "tls.ca_file"}, {"tls.cert_pem", "tls.cert_file"}, {"tls.key_pem", "tls.key_file"},
	} {
		if d.has(pair[0]) && d.has(pair[1]) {
			d.addValueError(pair[1], "is set together with %s: set only one of them", pair[0])
		}
	}
}

func (d *draft) certificates() {
	t := &d.TLS
	cert, key := t.CertFile != "" || t.CertPEM != "", t.KeyFile != "" || t.KeyPEM != ""
	switch {
	case cert && !key:
		d.addValueError("tls.cert_file", "has no key: set tls.key_file or tls.key_pem, too")
	case key && !cert:
		d.addValueError("tls.key_file", "has no certificate: set tls.cert_file or tls.cert_pem, too")
	}
	if t.CAPEM != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(t.CAPEM)) {
		d.addValueError("tls.ca_pem", "got text without a certificate, expected PEM (-----BEGIN CERTIFICATE-----)")
	}
	if t.CertPEM != "" && t.KeyPEM != "" {
		if _, err := KeyPair([]byte(t.CertPEM), []byte(t.KeyPEM)); err != nil {
			d.addValueError("tls.cert_pem", "%v", err)
		}
	}
	if t.SystemCAs && t.CAFile == "" && t.CAPEM == "" {
		d.addNotice("tls.include_system_ca_certs_pool", "has no effect without tls.ca_file or tls.ca_pem: the system's certificates are trusted anyway")
	}
	if t.InsecureSkipVerify && !d.Insecure {
		d.addNotice("tls.insecure_skip_verify", "the server's certificate is not verified: anyone on the network path can read and change the data; to trust a certificate instead, set tls.ca_file")
	}
	if d.Insecure {
		for i := range table {
			key := table[i].Key
			ofTokens := d.OAuth2.TokenURL != "" && (strings.HasPrefix(key, "tls.ca_") || key == "tls.include_system_ca_certs_pool")
			if strings.HasPrefix(key, "tls.") && table[i].alias == "" && !ofTokens && d.written(key) {
				d.addNotice(key, "has no effect: the connection is plain text")
			}
		}
	}
}

func (d *draft) sizes() {
	if d.Queue.Size < d.Batch.MaxRequestSize {
		d.addValueError("sending_queue.queue_size", "got %s, expected at least batch.max_request_size (%s), and preferably many times that: the limit is in bytes, not requests", formatSize(d.Queue.Size), formatSize(d.Batch.MaxRequestSize))
	}
	switch {
	case d.Queue.MaxAge > d.Batch.Interval:
	case d.written("sending_queue.max_age"):
		d.addValueError("sending_queue.max_age", "got %s, expected more than batch.interval (%s), because the oldest rows of a request have this age when it is sent", short(d.Queue.MaxAge), short(d.Batch.Interval))
	default:
		d.addNotice("batch.interval", "the oldest rows of a request are %s old when it is sent, so sending_queue.max_age (%s) drops it: raise sending_queue.max_age, or shorten the interval", short(d.Batch.Interval), short(d.Queue.MaxAge))
	}
	if d.Queue.Storage != "" && d.Queue.StorageSize < d.Batch.MaxRequestSize {
		d.addValueError("sending_queue.storage_size", "got %s, expected at least batch.max_request_size (%s)", formatSize(d.Queue.StorageSize), formatSize(d.Batch.MaxRequestSize))
	}
	if d.Queue.Storage == "" && d.written("sending_queue.storage_size") && d.Transport != TransportFile {
		d.addNotice("sending_queue.storage_size", "has no effect without sending_queue.storage")
	}
	if d.Transport == TransportGRPC && d.Batch.MaxRequestSize > grpcLimit {
		d.addNotice("batch.max_request_size", "%s is more than gRPC servers accept by default (%s): lower it, or raise the receiver's limit", formatSize(d.Batch.MaxRequestSize), formatSize(grpcLimit))
	}
	if d.Compression == "zstd" && d.Transport != TransportFile && (d.Preset == "pyroscope" || d.Preset == "parca") {
		d.addNotice("compression", "%s refuses zstd: set gzip or none, unless a proxy in front of it accepts zstd", map[string]string{"pyroscope": "Pyroscope", "parca": "Parca"}[d.Preset])
	}
	if d.Retry.Enabled && d.Retry.MaxInterval < d.Retry.InitialInterval {
		d.addValueError("retry_on_failure.max_interval", "got %s, expected at least retry_on_failure.initial_interval (%s)", short(d.Retry.MaxInterval), short(d.Retry.InitialInterval))
	}
}

func (d *draft) attributes() {
	if !d.written("host_services") && (d.HostServiceName != "host" || d.ServiceName != "") {
		d.HostServices = 0 // one name for processes outside containers makes them one service
	}
	for _, kv := range d.Resource {
		switch {
		case !wellFormed(kv.Key):
			d.addValueError("resource", "got the key %s, expected keys of at most 255 bytes without spaces", describe(kv.Key))
		case kv.Key == "service.name":
			d.addValueError("resource", "got service.name: set service_name for all profiles, or host_service_name for processes outside containers")
		}
	}
	for _, kv := range d.Attributes {
		if !wellFormed(kv.Key) {
			d.addValueError("attributes", "got the key %s, expected names of at most 255 bytes without spaces", describe(kv.Key))
		}
	}
}

// KeyPair wraps tls.X509KeyPair. Its errors name the remedy and contain no part of a key.
func KeyPair(cert, key []byte) (tls.Certificate, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err == nil {
		return pair, nil
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "does not match"):
		return pair, errors.New("the certificate and the key do not match: use the key that the certificate was issued for")
	case strings.Contains(text, "in certificate input"):
		return pair, errors.New("found no certificate, expected PEM (-----BEGIN CERTIFICATE-----)")
	case strings.Contains(text, "in key input"), strings.Contains(text, "parse private key"):
		return pair, errors.New("found no readable key, expected PEM without a passphrase (-----BEGIN PRIVATE KEY-----)")
	}
	return pair, errors.New("the certificate cannot be read: " + clip(strings.TrimPrefix(text, "tls: ")))
}
