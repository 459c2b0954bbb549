// hello is the tests' file for images.
package main

import "fmt"

var version = "unset"

func main() { fmt.Println("hello", version) }
