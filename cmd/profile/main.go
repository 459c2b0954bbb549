// profile shows where the programs of this machine spend time or memory, without a backend and without changes to them. It runs
// ig with a gadget and receives the profiles. It writes a table, a flame graph, a pprof file and OTLP. "make profile PID=1234"
// builds and runs it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"

	"github.com/spf13/pflag"
)

const usage = `profile shows which functions of programs take time, wait, or allocate memory.

  profile [flags]       sample this machine, or one program on it, as root
  profile diff A B      show the difference between two results
  profile check A B     fail if a function's share has grown
  profile open DIR      show a result in a browser
  profile history       show the recorded history of this machine
  profile pgo INPUT…    make a profile for "go build -pgo" from many runs and hosts
  profile demo          sample busy programs with known shares, as root

  sudo profile --pid 1234 --seconds 30
  sudo profile --pid 1234 --children --seconds 2m
  sudo profile --comm postgres --gadget offcpu
  sudo profile --container shop -o before
  sudo profile --pid 1234 --gadget alloc -- --live    # the gadget's flags come last

`

func main() {
	// After the first interrupt, the program stops sampling and reports the samples. It also restores the default handler, so a
	// second interrupt ends the program. The files are also complete if the terminal goes away.
	ends := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %s\n", filepath.Base(os.Args[0]), asStarted(err.Error(), os.Args[0]))
		if errors.Is(err, errCheck) || errors.Is(err, errCommand) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

// errCommand makes main exit with 2, because 1 would be a regression if the command should be check.
var errCommand = errors.New("unknown command")

func run(ctx context.Context, args []string) error {
	command := ""
	if len(args) > 0 {
		command = args[0]
	}
	switch command {
	case "diff":
		return runDiff(args[1:], os.Stdout)
	case "check":
		return runCheck(args[1:], os.Stdout)
	case "open":
		return runOpen(ctx, args[1:], os.Stdout)
	case "pgo":
		return runPGO(args[1:], os.Stdout)
	case "history":
		return runHistory(args[1:], os.Stdout)
	case "demo":
		return runDemo(ctx, args[1:], os.Stdout)
	case "help":
		return run(ctx, append(slices.Clone(args[1:]), "--help"))
	case burnCommand:
		return burn(os.Stdin)
	}
	if command != "" && command[0] != '-' {
		if name := nearest(command, []string{"check", "diff", "open", "pgo", "history", "demo"}); name != "" {
			return fmt.Errorf("%w %q: did you mean %s?", errCommand, command, name)
		}
	}
	return runProfile(ctx, args, os.Stdout)
}

var examples = regexp.MustCompile(`(?m)(^  (?:sudo )?|: )profile( |$)`)

// asStarted inserts the program's name into a usage or an error. In packages, the name is ig-otel-profile.
func asStarted(usage, program string) string {
	return examples.ReplaceAllString(usage, "${1}"+filepath.Base(program)+"${2}")
}

// newFlags returns the flags of a command. Its usage begins with head.
func newFlags(name, head string) *pflag.FlagSet {
	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	flags.SortFlags = false
	flags.Usage = func() {
		fmt.Fprint(os.Stderr, asStarted(head, os.Args[0]), "Flags:\n", flags.FlagUsages())
	}
	return flags
}
