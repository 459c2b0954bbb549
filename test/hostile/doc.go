// Package hostile runs programs of an unprivileged user that attack the profiler, and checks the effect on ig and on other
// programs. README.md lists the attacks. The tests have the build tag e2e. They need root and the results of "make build
// gadgets".
package hostile
