# hash_orders uses half of the CPU time, sort_orders 30 % and render_invoices 20 %.
import time


def hash_orders():
    h = 0
    for i in range(20000):
        h = (h ^ i) * 31 & 0xFFFFFFFF


def sort_orders():
    h = 0
    for i in range(20000):
        h = (h ^ i) * 37 & 0xFFFFFFFF


def render_invoices():
    h = 0
    for i in range(20000):
        h = (h ^ i) * 41 & 0xFFFFFFFF


while True:
    for work, percent in (hash_orders, 50), (sort_orders, 30), (render_invoices, 20):
        until = time.process_time() + percent / 1000
        while time.process_time() < until:
            work()
