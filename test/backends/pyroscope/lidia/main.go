// Command lidia converts an ELF file's symbols to the format of Pyroscope's symbolizer. Its arguments are the ELF file and the
// output file. The symbolizer itself does this with files from debuginfod. The version of package lidia that Pyroscope's module
// requires can write only to files. Unlike the server, that package has the Apache License.
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
