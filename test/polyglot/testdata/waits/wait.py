# Like wait.c, in Python.
import sys
import time

spent = [0, 0, 0]


def wait(which, seconds):
    begin = time.monotonic_ns()
    time.sleep(seconds)
    spent[which] += time.monotonic_ns() - begin


def heavy():
    wait(0, 0.18)


def light():
    wait(1, 0.09)


def rest():
    wait(2, 0.03)


def work():
    heavy()
    light()
    rest()


for _ in range(int(sys.argv[1])):
    work()
print(*spent)
