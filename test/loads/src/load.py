# 60 % of the CPU time is in heavy, 30 % in light, 10 % in rest: each works until it has its share.
import sys
import time

used = {"heavy": 0.0, "light": 0.0, "rest": 0.0}
due = {"heavy": 0.0, "light": 0.0, "rest": 0.0}


def heavy():
    due["heavy"] += 0.006
    while used["heavy"] < due["heavy"]:
        start = time.process_time()
        x = 1
        for i in range(5000):
            x = (x * 31 + i) & 0xFFFFFF
        used["heavy"] += time.process_time() - start


def light():
    due["light"] += 0.003
    while used["light"] < due["light"]:
        start = time.process_time()
        x = 1
        for i in range(5000):
            x = (x * 31 + i) & 0xFFFFFF
        used["light"] += time.process_time() - start


def rest():
    due["rest"] += 0.001
    while used["rest"] < due["rest"]:
        start = time.process_time()
        x = 1
        for i in range(5000):
            x = (x * 31 + i) & 0xFFFFFF
        used["rest"] += time.process_time() - start


def work():
    heavy()
    light()
    rest()


def step():
    work()


def run():
    step()
    print("ready", flush=True)
    while True:
        step()


run()
