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

// ErrNoStack is the error for a data source without a stack. It is a user's error only if the user named this data source.
var ErrNoStack = errors.New("no field with a stack")

// Options holds all inputs of Compile except the data source.
type Options struct {
	Gadget   GadgetInfo
	Exporter config.Exporter
	// Name overrides the annotation profiles.name if it is not empty.
	Name string
	Host Host
	// KernelMap returns the kernel stack map of the running gadget, or nil while there is none. UserMap and BuildIDMap do the
	// same for user stacks, for rows without text. Only SampleOf calls them. They can be nil.
	KernelMap, UserMap, BuildIDMap func() *ebpf.Map
	// MapSpec returns the gadget's definition of the named map, or nil. If MapSpec is nil, the gadget has no maps.
	MapSpec func(name string) *ebpf.MapSpec
	// Stacks provides the frames of stacks whose IDs are in rows (see StackTag). It can be nil.
	Stacks Stacks
	// KernelSymbols holds the running kernel's symbols. If it is nil, they are read once per process.
	KernelSymbols *stack.KernelSymbols
	// Names finds the files and functions of user frames. If it is nil, frames stay as in the row.
	Names Namer
	// First is the Plan of the same data source for another exporter, or nil. Its Options must be equal except for Exporter and
	// Name. The new Plan reads stacks through First and shares its StackKey. One goroutine must read the Samples of both Plans.
	First *Plan
	// Hosts finds the services of processes outside containers. If it is nil, all of them are one service.
	Hosts *hostproc.Resolver
	// Contexts provides process contexts. If it is nil, none are used.
	Contexts Contexts
	// Logger receives warnings about ignored annotations. It can be nil.
	Logger logger.Logger
}

// GadgetInfo describes the gadget.
type GadgetInfo struct {
	// ImageName is the image as the user wrote it, with its tag or digest.
	ImageName string
	// Config is the gadget's metadata after parameters have changed it. It can be nil.
	Config *viper.Viper
}

// Host is the machine that the gadget runs on.
type Host struct {
	ID       string // the machine ID, empty if it cannot be read
	Name     string // host.name of rows without a node name
	Arch     string // host.arch, as the convention spells it
	OS       string // os.type
	NodeName string // the name of the Kubernetes node, empty outside Kubernetes
}

// DetectHost describes this machine. It is the Kubernetes node's name (NODE_NAME), or else the host's own name. In a container,
// DetectHost reads the host's files below HOST_ROOT. It never uses the container's host name, which is the pod's name.
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

// machineID reads the host's machine ID. In the semantic conventions, it is the host.id of machines outside clouds
// (https://opentelemetry.io/docs/specs/semconv/resource/host/). A pod's own file does not describe the host.
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
		if raw, err := hex.DecodeString(id); err == nil && len(raw) == 16 { // "uninitialized" is not an ID
			return id
		}
	}
	return ""
}

// archName maps Go's architecture names to the names in the semantic conventions:
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

// Descriptor describes all profiles of a data source.
type Descriptor struct {
	// Name is the profile's name. Messages contain it, and it is the period type if no period is known.
	Name string
	// Types holds one entry per value of a row, and at least one entry.
	Types []profile.ValueType
	// Period and PeriodType are never empty.
	Period     int64
	PeriodType profile.ValueType
	// Last reports that the newest value replaces older ones and is not added.
	Last bool
	// Timestamps requests one timestamp per event.
	Timestamps bool
	// Counted reports that there is no value field, so each event counts as 1.
	Counted bool
	Scope   profile.Scope
}
