package procfs

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
)

// mostThreads limits the number of threads that are checked for a living one.
const mostThreads = 1024

// Folder returns a process's directory in proc, and the ID of the directory's thread. Usually, it is the first thread, whose ID
// is the PID. If the first thread has exited and others continue, as after pthread_exit, its directory lists no mappings or
// files. Folder then returns the directory of the oldest living thread.
func Folder(proc string, pid uint32) (folder string, thread uint32) {
	first := proc + "/" + strconv.FormatUint(uint64(pid), 10)
	if !ended(first) {
		return first, pid
	}
	dir, err := os.Open(first + "/task")
	if err != nil {
		return first, pid
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(mostThreads) // oldest first
	for _, name := range names {
		if tid, err := strconv.ParseUint(name, 10, 32); err == nil && uint32(tid) != pid && !ended(proc+"/"+name) {
			return proc + "/" + name, uint32(tid)
		}
	}
	return first, pid
}

// Lives reports whether proc lists a process with this PID that has memory. An exited process stays in proc until its parent
// waits for it. An inaccessible process counts as living.
func Lives(proc string, pid uint32) bool {
	folder, _ := Folder(proc, pid)
	return !ended(folder)
}

// ended reports whether the thread with this directory has no memory, because it has exited or is a kernel thread.
func ended(folder string) bool {
	_, err := os.Readlink(folder + "/exe")
	return errors.Is(err, fs.ErrNotExist)
}
