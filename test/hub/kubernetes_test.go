//go:build e2e

package hub

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/backends"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/recvtest"
)

type object = map[string]any

// apiServer answers k8s_attributes' requests to a cluster, with lists of pods and namespaces that never change. test/k8s has a
// real cluster.
func apiServer(t *testing.T, pods, namespaces []object) (kubeconfig string) {
	t.Helper()
	list := func(kind, version string, items []object) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			switch {
			case r.URL.Query().Get("sendInitialEvents") == "true":
				// It answers like an old cluster without streaming lists, so the client requests a list.
				w.WriteHeader(http.StatusBadRequest)
				writeJSON(w, object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "BadRequest", "code": http.StatusBadRequest})
			case r.URL.Query().Get("watch") != "":
				w.WriteHeader(http.StatusOK)
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			default:
				writeJSON(w, object{"kind": kind, "apiVersion": version, "metadata": object{"resourceVersion": "1"}, "items": items})
			}
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/pods", list("PodList", "v1", pods))
	mux.HandleFunc("GET /api/v1/namespaces", list("PartialObjectMetadataList", "meta.k8s.io/v1", namespaces))
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q}}]
users: [{name: test, user: {}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
`, server.URL), 0o600))
	return kubeconfig
}

func writeJSON(w http.ResponseWriter, v any) {
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(err)
	}
}

// podObject is a pod as the API server shows it.
func podObject(namespace, name, uid, ip string, labels, annotations object) object {
	return object{
		"metadata": object{"namespace": namespace, "name": name, "uid": uid, "labels": labels, "annotations": annotations},
		"spec":     object{"nodeName": "node-1", "containers": []object{{"name": "main", "image": "registry.example/main:1"}}},
		"status":   object{"podIP": ip, "startTime": "2026-01-02T03:04:05Z"},
	}
}

func TestKubernetes(t *testing.T) {
	backend := recvtest.StartHTTP(t, recvtest.HTTPConfig{})
	kubeconfig := apiServer(t,
		[]object{
			podObject("shop", "cart-7d4b9c-x2x4z", "uid-cart", "10.0.0.1", object{"team": "checkout"}, object{"example.com/commit": "abc123"}),
			podObject("shop", "search-7d4b9c-x2x4z", "uid-search", "10.0.0.2", nil, nil),
			// Like the daemon's pod, this pod has the connection's source address. Profiles must not be attributed to it.
			podObject("gadget", "gadget-abcde", "uid-gadget", "127.0.0.1", object{"team": "platform"}, nil),
		},
		[]object{{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object{"name": "shop", "labels": object{"cost-center": "4711"}}}},
	)
	through(t, 1, collectortest.Documented(t, "hub-kubernetes"), collectortest.Documented(t, "hub-exporter"), backend.URL,
		"K8S_AUTH_TYPE=kubeConfig", "KUBECONFIG="+kubeconfig)

	var messages []*collectorpb.ExportProfilesServiceRequest
	for _, r := range backend.Requests() {
		messages = append(messages, r.Profiles)
	}
	check(t, messages, collectors)
	require.Equal(t, map[string]int64{
		"cart main.hash": 30, "cart main.sort": 12, "search main.find": 20, "coredns dns.serve": 7, "host kubelet.sync": 5,
	}, values(messages), "nothing is lost, whether its pod is known or not")
	for _, s := range receiver.ResolveAll(messages) {
		r := s.Resource
		switch s.Service {
		case "cart":
			require.Equal(t, "uid-cart", r["k8s.pod.uid"])
			require.Equal(t, "checkout", r["team"])
			require.Equal(t, "abc123", r["vcs.ref.head.revision"])
			require.Equal(t, "4711", r["cost_center"])
			require.Equal(t, "cart", r["k8s.deployment.name"], "the exporter's stays")
		case "search":
			require.Equal(t, "uid-search", r["k8s.pod.uid"])
			require.Equal(t, "4711", r["cost_center"])
			require.NotContains(t, r, "team")
		default:
			require.NotContains(t, r, "k8s.pod.uid", s.Service)
			require.NotContains(t, r, "team", s.Service)
		}
	}
}

// TestPyroscopeKubernetes sends to Pyroscope through a Collector that finds pods by name and then changes the names of attributes.
func TestPyroscopeKubernetes(t *testing.T) {
	backend := start(t)
	kubeconfig := apiServer(t,
		[]object{podObject("shop", "cart-7d4b9c-x2x4z", "uid-cart", "10.0.0.1", object{"team": "checkout"}, nil)},
		[]object{{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object{"name": "shop"}}},
	)
	through(t, 1, collectortest.Documented(t, "pyroscope-kubernetes"), collectortest.Documented(t, "pyroscope-kubernetes-exporter"),
		backend.Addr(), "K8S_AUTH_TYPE=kubeConfig", "KUBECONFIG="+kubeconfig)

	accepted(t, backends.Pyroscope, backend.Requests())
	shown(t, backends.Pyroscope, backend.Requests())
	found := false
	for _, s := range receiver.ResolveAll(backend.Requests()) {
		require.NotContains(t, s.Attributes, "thread.name")
		if s.Service != "cart" {
			continue
		}
		found = true
		require.Equal(t, "uid-cart", s.Resource["k8s_pod_uid"])
		require.Equal(t, "checkout", s.Resource["team"])
		require.Equal(t, "cart-7d4b9c-x2x4z", s.Resource["k8s_pod_name"])
	}
	require.True(t, found)
}
