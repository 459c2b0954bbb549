// Command lidia writes the symbols of the ELF file that is its first argument into the file that is its second, in the
// format in which Pyroscope's symbolizer keeps them. The symbolizer does this itself with what it gets from debuginfod;
// the version of package lidia that its module asks for, when it is built from the Go module, can only write into files.
// That package is under the Apache License, unlike the server.
package main

import (
	"fmt"
	"os"

	"github.com/grafana/pyroscope/lidia"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: lidia ELF-FILE OUTPUT")
		os.Exit(2)
	}
	if err := lidia.CreateLidia(os.Args[1], os.Args[2], lidia.WithCRC(), lidia.WithFiles(), lidia.WithLines()); err != nil {
		fmt.Fprintf(os.Stderr, "reading the symbols of %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}
