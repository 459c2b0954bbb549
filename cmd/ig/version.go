package main

import (
	"fmt"
	"runtime/debug"

	"github.com/inspektor-gadget/inspektor-gadget/cmd/common"
	"github.com/spf13/cobra"
)

// version is this project's version, set by the Makefile.
var version string

// newVersionCommand returns Inspektor Gadget's command "version", which also prints this project's version on a second line.
func newVersionCommand() *cobra.Command {
	cmd := common.NewVersionCmd()
	cmd.Args = cobra.NoArgs
	cmd.Short = "Show the versions of Inspektor Gadget and of ig-otel-profiles"
	theirs := cmd.Run
	cmd.Run = func(cmd *cobra.Command, args []string) {
		theirs(cmd, args)
		fmt.Println("ig-otel-profiles", ownVersion())
	}
	return cmd
}

// ownVersion returns version, or the version from Go's build information, as after "go install".
func ownVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
