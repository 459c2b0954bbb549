package main

import (
	"fmt"
	"runtime/debug"

	"github.com/inspektor-gadget/inspektor-gadget/cmd/common"
	"github.com/spf13/cobra"
)

// version is this project's, set by the Makefile.
var version string

// newVersionCommand is Inspektor Gadget's "version", which prints its version, with that of this project
// on a second line.
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

// ownVersion falls back on what Go knows, as for a program from "go install".
func ownVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
