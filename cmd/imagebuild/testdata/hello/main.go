// hello is a program for the tests' images.
package main

import "fmt"

var version = "unset"

func main() { fmt.Println("hello", version) }
