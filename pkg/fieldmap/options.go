package fieldmap

import (
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/spf13/viper"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/config"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/hostproc"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// ErrNoStack is the error for a data source without a stack. It is only a fault if the user named
// this data source.
var ErrNoStack = errors.New("no field with a stack")

// Options are all inputs for the export of a row besides the data source.
type Options struct {
	Gadget   GadgetInfo
	Exporter config.Exporter
	// Name replaces the annotation profiles.name, if set.
	Name string
	Host Host
	// KernelMap returns the kernel stack map of the running gadget, or nil as long as there is
	// none. UserMap and BuildIDMap are the same for user stacks, for rows that carry no text. They
	// are called from Sample only, and may be nil.
	KernelMap, UserMap, BuildIDMap func() *ebpf.Map
	// MapSpec returns the gadget's definition of the map with that name, nil if it has none. It may be nil: then no gadget has
	// maps.
	MapSpec func(name string) *ebpf.MapSpec
	// Stacks has the frames of stacks by the IDs in rows, see StackTag. It may be nil.
	Stacks Stacks
	// KernelSymbols is the knowledge of the running kernel; nil means to read it, once in a process.
	KernelSymbols *stack.KernelSymbols
	// Names knows the files and functions of user frames; nil leaves them as the row has them.
	Names Namer
	// First is the Plan of the same data source for another exporter, nil for the first. Its Options were equal except for
	// Exporter and Name. The new Plan reads stacks with it, and shares its StackKey. Both belong to one goroutine where they read
	// Samples.
	First *Plan
	// Hosts knows the services of processes outside containers; nil makes one service of them all.
	Hosts *hostproc.Resolver
	// Contexts has the contexts of processes; nil leaves them out.
	Contexts Contexts
	// Logger takes warnings about annotations that are ignored. It may be nil.
	Logger logger.Logger
}

// GadgetInfo describes the gadget.
type GadgetInfo struct {
	// ImageName is the image as the user wrote it, with tag or digest.
	ImageName string
	// Config is the gadget's metadata, with what parameters have changed in it. It may be nil.
	Config *viper.Viper
}

// Host is the machine that the gadget runs on.
type Host struct {
	ID       string // the machine ID, empty if it cannot be read
	Name     string // host.name of rows that do not name their node
	Arch     string // host.arch, in the convention's words
	OS       string // os.type
	NodeName string // the name of the Kubernetes node, empty outside Kubernetes
}

// DetectHost describes this machine. Its name is that of the Kubernetes node (NODE_NAME)
// or else the host's own. In a container the host's files are below HOST_ROOT; the name of the
// container, which is the pod's, is never taken for the host's.
func DetectHost() Host {
	h := Host{
		Arch:     archName(runtime.GOARCH),
		OS:       runtime.GOOS,
		NodeName: os.Getenv("NODE_NAME"),
	}
	h.ID = machineID(os.Getenv("HOST_ROOT"), os.Getenv("KUBERNETES_SERVICE_HOST") != "")
	h.Name = hostName(h.NodeName, os.Getenv("HOST_ROOT"), os.Getenv("KUBERNETES_SERVICE_HOST") != "", os.Hostname)
	return h
}

func hostName(node, hostRoot string, inPod bool, own func() (string, error)) string {
	if node != "" {
		return node
	}
	if hostRoot != "" && hostRoot != "/" {
		b, err := os.ReadFile(filepath.Join(hostRoot, "etc", "hostname"))
		if err != nil {
			return ""
		}
		first, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
		return strings.TrimSpace(first)
	}
	if inPod {
		return ""
	}
	name, err := own()
	if err != nil {
		return ""
	}
	return name
}

// machineID reads the host's machine ID, which host.id takes for machines that are not a cloud's
// (https://opentelemetry.io/docs/specs/semconv/resource/host/). A pod's own file says nothing about
// the host.
func machineID(hostRoot string, inPod bool) string {
	if inPod && (hostRoot == "" || hostRoot == "/") {
		return ""
	}
	for _, path := range []string{"etc/machine-id", "var/lib/dbus/machine-id"} {
		b, err := os.ReadFile(filepath.Join("/", hostRoot, path))
		if err != nil {
			continue
		}
		id := strings.TrimSpace(string(b))
		if raw, err := hex.DecodeString(id); err == nil && len(raw) == 16 { // "uninitialized" is none
			return id
		}
	}
	return ""
}

// archName translates Go's name of an architecture into that of the convention, see
// https://opentelemetry.io/docs/specs/semconv/registry/attributes/host/#host-arch.
func archName(goarch string) string {
	switch goarch {
	case "386":
		return "x86"
	case "arm":
		return "arm32"
	case "ppc64le":
		return "ppc64"
	}
	return goarch
}

// Descriptor is the common part of a data source's profiles.
type Descriptor struct {
	// Name of the profile, for messages and as period type where no period is known.
	Name string
	// Types has one entry per value of a row, at least one.
	Types []profile.ValueType
	// Period and PeriodType are never empty.
	Period     int64
	PeriodType profile.ValueType
	// Last makes the newest value win instead of adding up.
	Last bool
	// Timestamps requests one timestamp per event.
	Timestamps bool
	// Counted says that there is no value field: each event counts 1.
	Counted bool
	Scope   profile.Scope
}
