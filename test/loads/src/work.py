# Does a little of what ordinary Python programs do, in turn, in the interpreter and in its modules in C.
import ast, base64, bisect, collections, csv, datetime, decimal, difflib, fractions, functools, hashlib, heapq, io, itertools
import json, math, pickle, random, re, string, struct, textwrap, zlib

SOURCE = '''
class Cart:
    """A cart."""
    def __init__(self, *items, **more):
        self.items = {k: v for k, v in items}
        self.total = sum(v for v in self.items.values() if v > 1) or more.get("total", 0)
    @property
    def names(self):
        try:
            return sorted(self.items, key=lambda n: (len(n), n))
        except (KeyError, TypeError) as e:
            raise ValueError(f"no names: {e!r:>10}") from e
        finally:
            self.total += 1
    async def later(self):
        async with self as c:
            yield [x async for x in c if x]
match = [a @ b for a, b in zip(range(3), range(3)) if a < b <= 7 and not (c := b)]
'''


def orders(n):
    random.seed(n)
    return [{"id": i, "name": "order-%d" % (i * 7919 % 1009), "price": random.uniform(1, 100), "lines": [f"{i:>5}|{j:x}|{i / 3:.3f}" for j in range(i % 5)],
             "at": (datetime.datetime(2026, 1, 1) + datetime.timedelta(hours=i)).isoformat(), "note": None if i % 3 else "\u00e9\u4e2d" * (i % 4)} for i in range(n)]


def texts(all):
    s = json.dumps(all, indent=1)
    back = json.loads(s)
    n = len(re.findall(r'"n[a-z]+": "(?P<n>[^"]*7)"', s)) + len(re.sub(r"(\d+)-(\d+)", r"\2:\1", s))
    n += len(textwrap.fill(s[:2000], 40)) + len(s.upper().split("ORDER")) + len(s.translate(str.maketrans("abc", "xyz")))
    n += len(list(difflib.unified_diff(s[:600].splitlines(), s[50:650].splitlines())))
    out = io.StringIO()
    w = csv.DictWriter(out, ["id", "name", "price"], extrasaction="ignore")
    w.writerows(back)
    return n + sum(len(r) for r in csv.reader(io.StringIO(out.getvalue()))) + len(string.Template("$a and ${b}").substitute(a=n, b=s[:9]))


def packed(all):
    p = pickle.dumps(all)
    z = zlib.compress(p, 6)
    assert pickle.loads(zlib.decompress(z)) == all
    h = hashlib.sha256(z).hexdigest() + hashlib.md5(p).hexdigest() + hashlib.blake2b(z).hexdigest()
    return len(base64.b85encode(z)) + len(h) + sum(struct.unpack("<%dH" % 50, z[:100])) + zlib.crc32(p)


def numbers(all):
    d = decimal.Decimal(0)
    f = fractions.Fraction(0)
    for o in all[:80]:
        d = (d + decimal.Decimal(repr(o["price"]))).quantize(decimal.Decimal("0.001")) * decimal.Decimal("1.01")
        f += fractions.Fraction(o["id"], 7)
    x = pow(3, 2**11 + 1, 2**521 - 1) // (math.factorial(60) | 1)
    return int(d) + int(f) + x.bit_length() + int(math.fsum(math.sin(o["price"]) * math.log(o["price"]) for o in all)) + len(str(3**700))


@functools.lru_cache(maxsize=64)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def collected(all):
    by = collections.defaultdict(list)
    count = collections.Counter()
    for o in all:
        by[o["name"]].append(o)
        count.update(o["name"])
    heap = []
    for o in all:
        heapq.heappush(heap, (o["price"], o["id"]))
    low = [heapq.heappop(heap) for _ in range(len(heap) // 2)]
    names = sorted({o["name"] for o in all} ^ {"order-1"}, key=lambda s: s[::-1])
    q = collections.deque(itertools.islice(itertools.permutations(names[:6], 3), 100), maxlen=50)
    return bisect.bisect(low, (50, 0)) + len(q) + fib(60) % 7 + len(list(itertools.groupby(names, key=len))) + len(count.most_common(3))


def compiled(n):
    tree = ast.parse(SOURCE)
    code = compile(tree, "cart", "exec")
    return len(ast.dump(tree)) + len(ast.unparse(tree)) + len(code.co_consts) + eval("sum(x * y for x in range(9) for y in (1, 2.5, %d))" % n)


round = 0
while True:
    all = orders(150 + round % 20)
    texts(all), packed(all), numbers(all), collected(all), compiled(round)
    if not round:
        print("ready", flush=True)
    round += 1
