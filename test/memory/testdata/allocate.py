#!/usr/bin/python3
"""allocate.py SECONDS PAUSE ROUNDS: as allocate.c, in Python. Objects of more than 512 bytes come from malloc."""

import sys
import time

rounds = int(sys.argv[3])
pause = int(sys.argv[2]) / 1e6
truth = {}
kept = [None] * rounds


def allocate(function, size):
    bytes_, calls = truth.get(function, (0, 0))
    truth[function] = bytes_ + size, calls + 1
    return bytearray(size - 1)  # it adds a zero byte


def allocate_large():
    allocate("allocate_large", 6000)


def allocate_middle():
    for _ in range(3):
        allocate("allocate_middle", 1000)


def leak_some(n):
    kept[n] = allocate("leak_some", 1000)


def main():
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(rounds):
        allocate_large()
        allocate_middle()
        leak_some(n)
        time.sleep(pause)
    for function, (bytes_, calls) in truth.items():
        print(function, bytes_, calls, flush=True)
    sys.stdin.readline()


main()
