"""A shop that keeps an account of what each of its functions does: see ../doc.go."""
import json
import mmap
import resource
import socket
import sys
import threading
import time

# The functions and their amounts, by question.
account = {q: {} for q in ("cpu", "offcpu", "lock", "alloc", "pagefault")}
stock = threading.Lock()
link, bank = socket.socketpair()


def add(question, name, amount):
    account[question][name] = account[question].get(name, 0) + amount


def call(function, *args):
    """Calls a function and accounts for what its thread did meanwhile."""
    name = function.__name__
    wall, cpu, faults = time.monotonic(), time.thread_time(), resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    function(*args)
    cpu = time.thread_time() - cpu
    add("cpu", name, cpu)
    add("offcpu", name, time.monotonic() - wall - cpu)
    add("pagefault", name, resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - faults)


def price_order(rounds):
    total = 0
    for i in range(rounds):
        total += i * i % 7


def render_invoice(rounds):
    text = ""
    for i in range(rounds):
        text = text[-50:] + str(i)


def ask_bank():
    time.sleep(0.03)


def ask_stock():
    link.settimeout(0.01)
    try:
        link.recv(1)
    except TimeoutError:
        pass


def take_lock():
    before = time.monotonic()
    with stock:
        add("lock", "take_lock", time.monotonic() - before)


def book_order():
    for _ in range(3):
        take_lock()
        time.sleep(0.001)


def refund_order():
    take_lock()


def keep_basket():
    """Allocates 4 MB."""
    basket = [bytes(4000) for _ in range(1000)]
    add("alloc", "keep_basket", len(basket) * 4033)


def keep_receipt():
    """Allocates 1 MB."""
    receipt = [bytes(1000) for _ in range(1000)]
    add("alloc", "keep_receipt", len(receipt) * 1033)


def touch(pages):
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as fresh:
        for i in range(pages):
            fresh[i * mmap.PAGESIZE] = 1


def load_catalogue():
    touch(3000)


def load_prices():
    touch(1000)


def count_stock():
    with stock:
        time.sleep(0.004)


def rest():
    time.sleep(0.002)


def warehouse():
    while True:
        call(count_stock)
        call(rest)


def serve():
    while True:
        call(price_order, 600_000)
        call(render_invoice, 140_000)
        call(ask_bank)
        call(ask_stock)
        call(book_order)
        call(refund_order)
        call(keep_basket)
        call(keep_receipt)
        call(load_catalogue)
        call(load_prices)


threading.Thread(target=warehouse, daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
for _ in sys.stdin:
    print(json.dumps(account), flush=True)
