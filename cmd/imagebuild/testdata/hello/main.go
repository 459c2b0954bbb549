// hello is what the tests put into images.
package main

import "fmt"

var version = "unset"

func main() { fmt.Println("hello", version) }
