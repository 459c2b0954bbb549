# shares.py is shares.c in Python: bytes() of these sizes call calloc.
import os
import time


def heavy():
    return bytes(60000)


def light():
    return bytes(30000)


def rest():
    return bytes(10000)


def main():
    while True:
        heavy()
        light()
        rest()
        time.sleep(0.05)


os.setuid(54321)
main()
