// programs builds the programs of package loads for the virtual machine. It writes each program's command line into a file next
// to it.
//
//	programs FOLDER PLACE NAME...
//
// FOLDER/NAME contains the program for PLACE/NAME in the machine. FOLDER/NAME/args contains its command line.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/test/loads"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 4 {
		log.Fatal("usage: programs FOLDER PLACE NAME...")
	}
	for _, name := range os.Args[3:] {
		if err := build(os.Args[1], os.Args[2], name); err != nil {
			log.Fatal(err)
		}
	}
}

func build(folder, place, name string) error {
	load, err := loads.Find(name)
	if err != nil {
		return err
	}
	p, err := load.Build(context.Background(), folder)
	if err != nil {
		return err
	}
	// This resolves symbolic links to interpreters, because the links do not exist in the virtual machine.
	args := append([]string(nil), p.Args...)
	if args[0], err = filepath.EvalSymlinks(args[0]); err != nil {
		return fmt.Errorf("finding the program of the load %s: %w", name, err)
	}
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], p.Dir, filepath.Join(place, name))
	}
	return os.WriteFile(filepath.Join(p.Dir, "args"), []byte(strings.Join(args, " ")+"\n"), 0o644)
}
