// Does a little of what ordinary Rust programs do, in turn: collections, text, formatting, parsing, sorting, channels of threads.
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::fmt::Write;
use std::hint::black_box;
use std::rc::Rc;
use std::sync::{mpsc, Arc, Mutex};

#[derive(Clone, Debug, PartialEq, PartialOrd)]
struct Order {
    id: u64,
    name: String,
    price: f64,
    lines: Vec<String>,
    note: Option<Box<Order>>,
}

fn orders(n: u64) -> Vec<Order> {
    (0..n)
        .map(|i| Order {
            id: i,
            name: format!("order-{}", i * 7919 % 1009),
            price: (i as f64).sqrt() * 1.37 + (i as f64).sin(),
            lines: (0..i % 5).map(|j| format!("{:>8}|{:08.3}|{:x}", j, i as f64 / 3.0, i * j)).collect(),
            note: if i % 7 == 0 { Some(Box::new(Order { id: i, name: String::new(), price: 0.0, lines: vec![], note: None })) } else { None },
        })
        .collect()
}

fn collections(all: &[Order]) -> usize {
    let mut hash: HashMap<String, Vec<u64>> = HashMap::new();
    let mut tree: BTreeMap<String, f64> = BTreeMap::new();
    let mut seen: HashSet<u64> = HashSet::new();
    let mut ids: BTreeSet<u64> = BTreeSet::new();
    let mut heap = BinaryHeap::new();
    let mut queue = VecDeque::new();
    for o in all {
        hash.entry(o.name.clone()).or_default().push(o.id);
        *tree.entry(o.name.clone()).or_insert(0.0) += o.price;
        seen.insert(o.id * 31 % 257);
        ids.insert(o.id * 17 % 509);
        heap.push((o.price as u64, o.id));
        queue.push_back(Rc::new(o.clone()));
        if queue.len() > 40 {
            queue.pop_front();
        }
    }
    let mut n = 0;
    while let Some((p, id)) = heap.pop() {
        n += (p ^ id) as usize & 1;
    }
    for i in (0..1009).step_by(3) {
        tree.remove(&format!("order-{}", i));
    }
    n + hash.len() + tree.range("order-5".to_string()..).count() + seen.len() + ids.iter().rev().take(9).count()
}

fn text(all: &[Order]) -> usize {
    let mut out = String::new();
    for o in all {
        writeln!(out, "{:?} {:<12} {:e} {:#x}", o, o.name.to_uppercase(), o.price, o.id).unwrap();
    }
    let mut n = 0;
    for line in out.lines() {
        for word in line.split_whitespace() {
            n += word.parse::<f64>().map(|f| f as usize & 1).unwrap_or(0);
            n += word.trim_matches(|c: char| !c.is_alphanumeric()).chars().rev().filter(|c| c.is_numeric()).count();
        }
        n += line.find("order-77").unwrap_or(1) + line.replace("order", "o").len();
        n += u64::from_str_radix(&line.bytes().filter(|b| b.is_ascii_hexdigit()).take(12).map(char::from).collect::<String>(), 16).unwrap_or(0) as usize & 3;
    }
    n
}

fn sorted(mut all: Vec<Order>) -> usize {
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.sort_unstable_by(|a, b| b.price.partial_cmp(&a.price).unwrap());
    all.sort_by_key(|o| o.lines.len());
    all.dedup_by_key(|o| o.id / 2);
    let mut ids: Vec<u64> = all.iter().map(|o| o.id.rotate_left(7) ^ 0x5555).collect();
    ids.sort_unstable();
    ids.binary_search(&77).unwrap_or_else(|i| i) + all.windows(2).filter(|w| w[0] < w[1]).count()
}

fn channels(all: &[Order]) -> usize {
    let (send, receive) = mpsc::channel();
    let shared = Arc::new(Mutex::new(0u64));
    for o in all {
        send.send(o.clone()).unwrap();
        *shared.lock().unwrap() += o.id;
    }
    drop(send);
    receive.iter().filter(|o| o.note.is_some()).count()
}

fn main() {
    for round in 0u64.. {
        let all = orders(200 + round % 40);
        black_box(collections(&all) + text(&all) + channels(&all) + sorted(all));
        if round == 0 {
            println!("ready");
        }
    }
}
