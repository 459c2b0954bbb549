package procfs

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
)

// mostThreads limits the threads of a process that are checked for a living one.
const mostThreads = 1024

// Folder returns the folder of a process in proc, and the thread that it is of. That is the first one, which has the number of
// the process. If main has ended and other threads continue, as with pthread_exit, its folder has no mappings or files. Then it
// is the folder of the oldest living thread.
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
	names, _ := dir.Readdirnames(mostThreads) // in the order in which they began
	for _, name := range names {
		if tid, err := strconv.ParseUint(name, 10, 32); err == nil && uint32(tid) != pid && !ended(proc+"/"+name) {
			return proc + "/" + name, uint32(tid)
		}
	}
	return first, pid
}

// Lives reports whether proc has a process with that PID and memory. An ended one stays there until its parent waits for it. One
// that may not be inspected counts as living.
func Lives(proc string, pid uint32) bool {
	folder, _ := Folder(proc, pid)
	return !ended(folder)
}

// ended reports whether the owner of this folder has no memory: an ended thread, or a kernel thread.
func ended(folder string) bool {
	_, err := os.Readlink(folder + "/exe")
	return errors.Is(err, fs.ErrNotExist)
}
