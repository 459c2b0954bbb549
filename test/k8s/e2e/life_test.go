package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
)

const (
	lifePage = "docs/operate/upgrade.md"
	// oldImage is a daemon from before the format of stored requests changed. newImage is the daemon of this tree.
	oldImage = "localhost/inspektor-gadget:old"
	newImage = "localhost/inspektor-gadget:test"
	// storage is the queue's folder on the node, as in the guide's patch.
	storage = "/var/lib/otel-profiles"
	// hookSocket belongs to Inspektor Gadget. It stays on the node until the page's command removes it.
	hookSocket = "/run/hook-liveness.socket"
)

// deployWithStorage deploys a daemon for the test's exporter, with the queue's volume from the guide's patch.
func (g *guide) deployWithStorage(t *testing.T, image string) {
	t.Helper()
	dir := t.TempDir()
	for _, b := range pageBlocks(t, g.top, guidePage, "Volumes and rotated certificates") {
		if b.file != "kustomization.yaml" {
			continue
		}
		var kept []string
		for _, line := range strings.Split(b.text, "\n") {
			if !strings.Contains(line, "tls") && !strings.Contains(line, "TLS") {
				kept = append(kept, line)
			}
		}
		text := strings.Join(kept, "\n")
		require.Contains(t, text, "COLLECTOR_SENDING_QUEUE_STORAGE, value: "+storage)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600))
	}
	config := g.daemonConfig(t, "daemon.yaml")
	manifests := g.kubectl(t, "gadget", "deploy", "-q", "--image", image, "--image-pull-policy", "Never", "--daemon-config", config, "--print-only")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "gadget.yaml"), []byte(manifests), 0o600))
	g.in(t, "bash", "-euo", "pipefail", "-c", "kubectl kustomize "+dir+" | kubectl apply --server-side --force-conflicts -f -")
	g.daemonPod(t)
}

// atRest returns the daemon's row counts once they no longer change after the Collector has stopped. Exporters report every
// five seconds.
func (c cluster) atRest(t *testing.T) rowCounts {
	t.Helper()
	for b := c.figures(t).rows(); ; {
		time.Sleep(6 * time.Second)
		now := c.figures(t).rows()
		if now.delivered == b.delivered && now.dropped == b.dropped {
			return now
		}
		b = now
	}
}

// grows waits until a daemon has read more rows than before.
func (c cluster) grows(t *testing.T, than float64) {
	t.Helper()
	eventually(t, func() error {
		if b := c.figures(t).rows(); b.read <= than {
			return fmt.Errorf("%.0f rows read", b.read)
		}
		return nil
	})
}

var lastWords = regexp.MustCompile(`(\d+) rows read, (\d+) exported, (\d+) not`)

// followLog reads the log of a daemon's pod until the pod ends, and then sends it.
func (c cluster) followLog(t *testing.T, pod string) <-chan string {
	t.Helper()
	log := make(chan string, 1)
	follow := c.command(t.Context(), "kubectl", "-n", "gadget", "logs", "-f", pod)
	go func() {
		out, _ := follow.CombinedOutput()
		log <- string(out)
	}()
	return log
}

// replace runs the command that replaces the daemon's pod. It returns how many rows the old daemon had read, according to its
// closing line.
func (c cluster) replace(t *testing.T, how ...string) float64 {
	t.Helper()
	name, uid := c.daemonPod(t)
	log := c.followLog(t, name)
	c.kubectl(t, how...)
	words := <-log
	found := lastWords.FindAllStringSubmatch(words, -1)
	require.NotEmpty(t, found, "the daemon's log has no closing line:\n%s", tail(words, 20))
	read, err := strconv.ParseFloat(found[len(found)-1][1], 64)
	require.NoError(t, err)
	require.Equal(t, "0", found[len(found)-1][3], "rows that were not exported")
	eventually(t, func() error {
		if _, now := c.daemonPod(t); now == uid {
			return errors.New("the pod is still the old one")
		}
		return nil
	})
	return read
}

// stored returns the files in the node's queue.
func (c cluster) stored(t *testing.T) []string {
	t.Helper()
	return strings.Fields(c.in(t, "find", storage, "-name", "*.msg"))
}

// settled waits until the queue is empty. Then all rows that the daemon read or took over have been delivered or dropped.
func (c cluster) settled(t *testing.T, takenOver float64) rowCounts {
	t.Helper()
	var b rowCounts
	eventually(t, func() error {
		figures, err := c.counters(t.Context())
		if err != nil {
			return err
		}
		b = figures.rows()
		if size := figures.sum["ig_otel_profiles_exporter_queue_size_bytes"]; size > 0 || b.delivered+b.dropped != b.read+takenOver {
			return fmt.Errorf("%.0f bytes held; %.0f rows read and %.0f taken over, %.0f delivered, %.0f dropped", size, b.read, takenOver, b.delivered, b.dropped)
		}
		return nil
	})
	return b
}

func (c cluster) collectorReplicas(t *testing.T, n int) {
	t.Helper()
	c.kubectl(t, "-n", "observability", "scale", "deployment/collector", "--replicas="+strconv.Itoa(n))
	if n == 0 {
		c.kubectl(t, "-n", "observability", "wait", "pod", "-l", "app=collector", "--for=delete", "--timeout="+patience.String())
		return
	}
	c.kubectl(t, "-n", "observability", "rollout", "status", "deployment/collector", "--timeout="+patience.String())
}

// testLife upgrades the daemon under load, replaces its pod, rolls it back and removes it. The Collector is stopped most of the
// time.
func testLife(t *testing.T, c cluster) {
	g := newGuide(t, c)
	if _, err := c.try(t.Context(), "kubectl", "get", "namespace", "gadget"); err == nil {
		c.kubectl(t, "gadget", "undeploy", "--delete-namespace")
	}
	c.apply(t, "collector.yaml")
	c.collectorReplicas(t, 1)
	c.in(t, "rm", "-rf", hookSocket, storage) // of an earlier daemon
	clean := c.traces(t)

	since := time.Now()
	g.deployWithStorage(t, oldImage)
	c.kubectl(t, "gadget", "run", oldGadget, "-n", "shop", "--detach", "--name", "life", "--otel-profiles-exporter=collector", "--format-stacks=false")
	c.eventuallyArrived(t, since, some("solo", since, since.Add(time.Hour)))

	// At the upgrade, the queue contains rows in the old format.
	c.collectorReplicas(t, 0)
	away := time.Now()
	c.grows(t, c.figures(t).rows().read+50)
	before := c.atRest(t)
	readByOld := c.replace(t, "-n", "gadget", "set", "image", "daemonset/gadget", "gadget="+newImage)
	held := readByOld - before.delivered - before.dropped
	require.Positive(t, held)
	t.Logf("the old daemon: %.0f rows read, %.0f delivered, %.0f dropped; %.0f rows in %d stored requests of the old format",
		readByOld, before.delivered, before.dropped, held, len(c.stored(t)))
	c.grows(t, 50)
	upgraded := time.Now()
	c.collectorReplicas(t, 1)
	after := c.settled(t, held)
	require.Equal(t, before.dropped, after.dropped, "rows were dropped")
	c.eventuallyArrived(t, away, some("solo", away, upgraded))

	// The daemon's pod is replaced while the Collector is stopped.
	c.collectorReplicas(t, 0)
	c.grows(t, c.figures(t).rows().read+50)
	atOutage := c.atRest(t)
	foreign := c.plantForeign(t)
	name, _ := c.daemonPod(t)
	readByNew := c.replace(t, "-n", "gadget", "delete", "pod", name)
	held2 := readByNew + held - atOutage.delivered - atOutage.dropped
	require.Positive(t, held2)
	c.grows(t, 50)
	c.requireKept(t, foreign)
	c.collectorReplicas(t, 1)
	replaced := c.settled(t, held2)
	t.Logf("rows: read %.0f + %.0f + %.0f; delivered %.0f + %.0f + %.0f; dropped %.0f",
		readByOld, readByNew, replaced.read, before.delivered, atOutage.delivered, replaced.delivered, replaced.dropped)
	require.Zero(t, replaced.dropped)
	require.Equal(t, readByOld+readByNew+replaced.read, before.delivered+atOutage.delivered+replaced.delivered, "all rows that the three daemons have read were delivered")

	// The daemon sends the stored requests before the rollback, as the page demands.
	c.in(t, "rm", foreign)
	c.settled(t, held2)
	back := time.Now()
	c.replace(t, "-n", "gadget", "set", "image", "daemonset/gadget", "gadget="+oldImage)
	c.eventuallyArrived(t, back, some("solo", back, back.Add(time.Hour)))
	b := c.settled(t, 0)
	require.Zero(t, b.dropped, "the old daemon dropped rows after the rollback")
	t.Logf("rolled back: %.0f rows read, %.0f delivered, none dropped", b.read, b.delivered)

	ids := programsAndMaps(t, c.daemonProcess(t))
	t.Logf("the daemon holds %d eBPF programs and %d maps", len(ids.programs), len(ids.maps))
	require.NotEmpty(t, ids.programs)
	// After the removal from the cluster, only the files that the page names are left. After its last commands, nothing is left.
	remove := g.run(t, lifePage, pageBlocks(t, g.top, lifePage, "Remove"), has("undeploy"))
	eventually(t, func() error {
		if left := ids.left(); left != "" {
			return errors.New("still in the kernel: " + left)
		}
		return c.leaves(t, clean, hookSocket, storage)
	})
	g.run(t, lifePage, remove, nil)
	require.NoError(t, c.leaves(t, clean))
	t.Log("removed: no new program, map, pin, mount or file is left")
}

// leaves requires that the node has only its clean traces and the named files and folders. All of the named ones must exist.
func (c cluster) leaves(t *testing.T, clean []string, named ...string) error {
	t.Helper()
	traces := c.traces(t)
	for _, name := range named {
		if !slices.Contains(traces, name) {
			return fmt.Errorf("%s is not left on the node, as the page says", name)
		}
	}
	for _, trace := range traces {
		of := func(name string) bool { return trace == name || strings.HasPrefix(trace, name+"/") }
		if !slices.Contains(clean, trace) && !slices.ContainsFunc(named, of) {
			return fmt.Errorf("left on the node: %s", trace)
		}
	}
	return nil
}

// plantForeign adds a request to the node's queue, in a format that no version knows.
func (c cluster) plantForeign(t *testing.T) string {
	t.Helper()
	file := storage + "/00000000000090000000.msg"
	c.in(t, "bash", "-c", `printf 'IGOP\000\143of a later version' >`+file+` && chmod 600 `+file)
	return file
}

// requireKept requires that the request in an unknown format still exists and that the log names its file.
func (c cluster) requireKept(t *testing.T, file string) {
	t.Helper()
	c.in(t, "test", "-s", file)
	name, _ := c.daemonPod(t)
	log := c.kubectl(t, "-n", "gadget", "logs", name)
	require.Contains(t, log, filepath.Base(file), "the log does not name it")
}

// traces returns the files and mounts that a daemon can leave on its node. It excludes /var/lib/ig, which belongs to ig on the
// machine that runs the cluster. The daemon's /var/lib/ig is a volume of its pod.
func (c cluster) traces(t *testing.T) []string {
	t.Helper()
	out := c.in(t, "bash", "-c", `find /etc /opt /usr/share/containers /sys/fs/bpf /var/lib /run -xdev \( -path /var/lib/kubelet -o -path /var/lib/containerd `+
		`-o -path /var/lib/cni -o -path /var/lib/ig -o -path /run/containerd -o -path /run/netns -o -path /run/overlay -o -path /run/cni-ipam -o -path /run/xtables.lock -o -path /run/docker \) -prune -o -print; `+
		`grep -o '[^ ]*gadget[^ ]*' /proc/self/mountinfo || true`)
	return strings.Split(strings.TrimSpace(out), "\n")
}

// kernelObjects holds the IDs of eBPF programs and maps.
type kernelObjects struct{ programs, maps []uint32 }

var fdinfoID = regexp.MustCompile(`(?m)^(prog_id|map_id):\s*(\d+)$`)

// programsAndMaps returns the eBPF programs and maps of a process.
func programsAndMaps(t *testing.T, pid int) kernelObjects {
	t.Helper()
	var ids kernelObjects
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	require.NoError(t, err)
	for _, file := range files {
		info, err := os.ReadFile(file)
		if err != nil {
			continue // closed meanwhile
		}
		for _, m := range fdinfoID.FindAllStringSubmatch(string(info), -1) {
			id, err := strconv.ParseUint(m[2], 10, 32)
			require.NoError(t, err)
			if m[1] == "prog_id" {
				ids.programs = append(ids.programs, uint32(id))
			} else {
				ids.maps = append(ids.maps, uint32(id))
			}
		}
	}
	return ids
}

// left lists the objects that still exist in the kernel.
func (k kernelObjects) left() string {
	var left []string
	for _, id := range k.programs {
		if p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id)); err == nil {
			left = append(left, fmt.Sprintf("program %d (%s)", id, p))
			_ = p.Close()
		}
	}
	for _, id := range k.maps {
		if m, err := ebpf.NewMapFromID(ebpf.MapID(id)); err == nil {
			left = append(left, fmt.Sprintf("map %d (%s)", id, m))
			_ = m.Close()
		}
	}
	return strings.Join(left, ", ")
}
