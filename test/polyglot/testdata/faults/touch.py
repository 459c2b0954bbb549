# Like touch.c, in Python.
import mmap
import sys
import time

touched = [0, 0, 0]


def touch(which, pages):
    fresh = mmap.mmap(-1, pages * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for i in range(pages):
        fresh[i * 4096] = 1
    fresh.close()
    touched[which] += pages


def heavy():
    touch(0, 600)


def light():
    touch(1, 300)


def rest():
    touch(2, 100)


def work():
    heavy()
    light()
    rest()


for _ in range(int(sys.argv[1])):
    work()
    time.sleep(.06)
print(*touched)
