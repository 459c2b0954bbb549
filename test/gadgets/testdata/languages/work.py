"""Does what work.c does."""
import os
import sys
import threading


def burn():
    total = 0
    for i in range(50000):
        total += i
    return total


def touch():
    bytearray(100000)
    open("/dev/null").close()
    os.chroot("/")


def work():
    while True:
        burn()
        touch()


threading.Thread(target=work, daemon=True).start()
sys.stdin.read()
os._exit(0)
