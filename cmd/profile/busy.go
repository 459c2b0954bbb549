package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

// busySources contains the busy programs in languages other than Go.
//
//go:embed demo
var busySources embed.FS

// busy is a program with three functions that take 50, 30 and 20 % of its CPU time.
type busy struct {
	language string
	// kind is the type of its functions' frames.
	kind string
	// functions holds the functions' names in profiles, in the order of busyShares.
	functions [3]string
	// tools lists commands that can run or compile the program. The first installed one is used.
	tools []string
	// command returns the command that runs the program. If necessary, it first compiles the program into dir.
	command func(ctx context.Context, tool, dir string) (*exec.Cmd, error)
}

// busyShares are the percentages of the three functions.
var busyShares = [3]int{50, 30, 20}

func busyPrograms() []busy {
	snake := [3]string{"hash_orders", "sort_orders", "render_invoices"}
	camel := [3]string{"hashOrders", "sortOrders", "renderInvoices"}
	script := func(name string, flags ...string) func(context.Context, string, string) (*exec.Cmd, error) {
		return func(_ context.Context, tool, dir string) (*exec.Cmd, error) {
			return exec.Command(tool, append(flags, filepath.Join(dir, name))...), nil
		}
	}
	return []busy{
		{"Go", "go", [3]string{"main.hashOrders", "main.sortOrders", "main.renderInvoices"}, []string{""},
			func(context.Context, string, string) (*exec.Cmd, error) {
				self, err := os.Executable()
				return exec.Command(self, burnCommand), err
			}},
		{"C, without frame pointers", "native", snake, []string{"cc", "gcc", "clang"},
			func(ctx context.Context, tool, dir string) (*exec.Cmd, error) {
				program := filepath.Join(dir, "busy")
				compile := exec.CommandContext(ctx, tool, "-O1", "-fomit-frame-pointer", "-o", program, filepath.Join(dir, "busy.c"))
				if output, err := compile.CombinedOutput(); err != nil {
					return nil, fmt.Errorf("%w\n%s", err, output)
				}
				return exec.Command(program), nil
			}},
		{"Python", "cpython", snake, []string{"/usr/bin/python3", "python3"}, script("busy.py")},
		{"Node.js", "v8js", camel, []string{"node", "nodejs"}, script("busy.js")},
		{"Java", "jvm", [3]string{"Busy.hashOrders", "Busy.sortOrders", "Busy.renderInvoices"}, []string{"javac"},
			func(ctx context.Context, tool, dir string) (*exec.Cmd, error) {
				if output, err := exec.CommandContext(ctx, tool, "-d", dir, filepath.Join(dir, "Busy.java")).CombinedOutput(); err != nil {
					return nil, fmt.Errorf("%w\n%s", err, output)
				}
				return exec.Command(filepath.Join(filepath.Dir(tool), "java"), "-cp", dir, "Busy"), nil
			}},
	}
}

// running is a started busy program.
type running struct {
	busy
	cmd   *exec.Cmd
	stdin io.Closer
}

// startBusy starts the busy programs that this machine can run, with their files in dir. stop ends them.
func startBusy(ctx context.Context, dir string, out io.Writer) (programs []running, stop func() error, err error) {
	stop = func() error {
		var errs []error
		for _, p := range programs {
			errs = append(errs, p.stdin.Close(), p.cmd.Process.Kill())
			_ = p.cmd.Wait() // killed, so it returns an error
		}
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("stopping the busy programs: %w", err)
		}
		return nil
	}
	if err := os.CopyFS(dir, busySources); err != nil {
		return nil, stop, fmt.Errorf("writing the busy programs: %w", err)
	}
	dir = filepath.Join(dir, "demo")
	var absent []string
	for _, b := range busyPrograms() {
		tool, found := findTool(b.tools)
		if !found {
			absent = append(absent, fmt.Sprintf("%s (no %s)", b.language, b.tools[len(b.tools)-1]))
			continue
		}
		cmd, err := b.command(ctx, tool, dir)
		if err != nil {
			return programs, stop, fmt.Errorf("building the busy program in %s: %w", b.language, err)
		}
		// The kernel kills the busy programs when this program exits, even if it crashes.
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		stdin, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return programs, stop, fmt.Errorf("starting the busy program in %s: %w", b.language, err)
		}
		programs = append(programs, running{b, cmd, stdin})
	}
	if len(absent) > 0 {
		fmt.Fprintf(out, "the demo leaves out languages whose tools are not installed: %s\n", strings.Join(absent, ", "))
	}
	return programs, stop, nil
}

// findTool returns the path of the first command that exists. An empty name means that no command is necessary.
func findTool(names []string) (string, bool) {
	for _, name := range names {
		if name == "" {
			return "", true
		}
		if path, err := exec.LookPath(name); err == nil {
			return path, true
		}
	}
	return "", false
}

// calls reports whether a stack contains a function of the program. In some languages, function names include their module,
// class or arguments.
func (b busy) calls(stack []receiver.Frame, function string) bool {
	return slices.ContainsFunc(stack, func(f receiver.Frame) bool {
		native := b.kind == "go" && f.Type == "native" // some gadgets do not mark Go frames
		return (f.Type == b.kind || native) && strings.Contains(f.Name, function)
	})
}
