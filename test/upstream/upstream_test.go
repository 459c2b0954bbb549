//go:build upstream

// Package upstream shows defects of Inspektor Gadget with only its public packages: see README.md. Each test fails while the defect
// exists.
package upstream

import (
	"context"
	"os"
	"sync"
	"syscall"
	"testing"

	gadgetservice "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	instancemanager "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/instance-manager"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/logger"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/metrics"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/runtime/local"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer"
	_ "github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer/symtab"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/utils/host"
)

// TestResolve resolves stacks of one program from several goroutines, as a gadget with several data sources does. Run it with -race.
func TestResolve(t *testing.T) {
	host.HostProcFs = "/proc"
	s, err := symbolizer.NewSymbolizer(symbolizer.SymbolizerOptions{UseSymtab: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var ns, exe syscall.Stat_t
	if err := syscall.Stat("/proc/self/ns/pid", &ns); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Stat("/proc/self/exe", &exe); err != nil {
		t.Fatal(err)
	}
	task := symbolizer.Task{
		Tgid:       uint32(os.Getpid()),
		PidNumbers: []symbolizer.PidNumbers{{Pid: uint32(os.Getpid()), PidNsId: uint32(ns.Ino)}},
		Exe: symbolizer.SymbolTableKey{Major: uint32(exe.Dev >> 8), Minor: uint32(exe.Dev & 0xff), Ino: exe.Ino,
			MtimeSec: exe.Mtim.Sec, MtimeNsec: uint32(exe.Mtim.Nsec)},
	}
	var all sync.WaitGroup
	for n := range uint32(4) {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := range uint32(200) {
				task := task
				task.BaseAddrHash = 1000*n + i + 1
				if _, err := s.Resolve(task, []symbolizer.StackItemQuery{{Addr: 0x500000}}); err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	all.Wait()
}

// stored is a store of detached runs. Like the list of every node, it also contains other nodes' entries.
type stored struct {
	api.UnimplementedGadgetInstanceManagerServer
}

func (stored) ResumeStoredGadgets() error { return nil }

func (stored) ListGadgetInstances(context.Context, *api.ListGadgetInstancesRequest) (*api.ListGadgetInstanceResponse, error) {
	return &api.ListGadgetInstanceResponse{GadgetInstances: []*api.GadgetInstance{{Id: "68ab84f7c6d0f5781585eb1b5289499f", Nodes: []string{"elsewhere"}}}}, nil
}

// TestList lists a node's runs while there is one for another node.
func TestList(t *testing.T) {
	service := gadgetservice.NewService(logger.DefaultLogger())
	manager, err := instancemanager.New(local.New())
	if err != nil {
		t.Fatal(err)
	}
	service.SetInstanceManager(manager)
	service.SetStore(stored{})
	if _, err := service.ListGadgetInstances(t.Context(), &api.ListGadgetInstancesRequest{}); err != nil {
		t.Fatal(err)
	}
}

// TestGauge records a value in a gauge of Inspektor Gadget's own metrics.
func TestGauge(t *testing.T) {
	gauge, err := metrics.Int64Gauge("x")
	if err != nil {
		t.Fatal(err)
	}
	gauge.Record(context.Background(), 1)
}
