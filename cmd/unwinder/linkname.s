// This file lets a function without a body, declared by go:linkname, be compiled.
