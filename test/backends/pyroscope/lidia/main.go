// Command lidia writes the symbols of an ELF file, its first argument, into its second, in the format of Pyroscope's symbolizer.
// The symbolizer does this itself with files from debuginfod. The version of package lidia that Pyroscope's module requires can
// only write into files. Unlike the server, that package is under the Apache License.
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
