# As wait.c, in Python.
import time

spent = [0, 0, 0]


def wait(which, seconds):
    begin = time.monotonic_ns()
    time.sleep(seconds)
    spent[which] += time.monotonic_ns() - begin


def heavy():
    wait(0, .03)


def light():
    wait(1, .015)


def rest():
    wait(2, .005)


def work():
    heavy()
    light()
    rest()


while True:
    work()
    print(time.time_ns(), *spent, flush=True)
