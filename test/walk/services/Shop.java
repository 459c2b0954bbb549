import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;

/** A shop that keeps an account of the work of each of its functions: see ../doc.go. */
public final class Shop {
	/** The functions and their amounts, by question. */
	private static final Map<String, Map<String, Double>> account = new TreeMap<>();
	private static final ThreadMXBean threads = ManagementFactory.getThreadMXBean();
	private static final Object stock = new Object();
	private static volatile int sink;
	private static volatile List<byte[]> kept;

	private static synchronized void add(String question, String name, double amount) {
		account.get(question).merge(name, amount, Double::sum);
	}

	/** The page faults of this thread; see proc_pid_stat(5). */
	private static long faults() {
		try {
			String stat = Files.readString(Path.of("/proc/thread-self/stat"));
			return Long.parseLong(stat.substring(stat.lastIndexOf(')') + 2).split(" ")[7]);
		} catch (IOException e) {
			throw new RuntimeException(e);
		}
	}

	/** Calls a function and accounts for what its thread did meanwhile. */
	private static void call(String name, Runnable function) {
		long faults = faults(), wall = System.nanoTime(), before = threads.getCurrentThreadCpuTime();
		function.run();
		double cpu = (threads.getCurrentThreadCpuTime() - before) / 1e9;
		add("cpu", name, cpu);
		add("offcpu", name, (System.nanoTime() - wall) / 1e9 - cpu);
		add("pagefault", name, faults() - faults);
	}

	static void priceOrder() {
		int total = 1;
		for (int i = 1; i < 8_000_000; i++) {
			total = (total + i) % (i | 1);
		}
		sink = total;
	}

	static void renderInvoice() {
		int text = 1;
		for (int i = 1; i < 4_000_000; i++) {
			text = (text ^ i) * 16777619 % (i | 1);
		}
		sink = text;
	}

	static void askBank() {
		sleep(30);
	}

	static void askStock() {
		sleep(10);
	}

	private static void sleep(int milliseconds) {
		try {
			Thread.sleep(milliseconds);
		} catch (InterruptedException e) {
			throw new RuntimeException(e);
		}
	}

	private static void takeLock(String name) {
		long before = System.nanoTime();
		synchronized (stock) {
			add("lock", name, (System.nanoTime() - before) / 1e9);
		}
	}

	static void bookOrder() {
		for (int i = 0; i < 3; i++) {
			takeLock("bookOrder");
			sleep(1);
		}
	}

	static void refundOrder() {
		takeLock("refundOrder");
	}

	private static void keep(String name, int size) {
		List<byte[]> list = new ArrayList<>();
		for (int i = 0; i < 1000; i++) {
			list.add(new byte[size]);
		}
		kept = list;
		add("alloc", name, 1000.0 * (size + 16));
	}

	/** Allocates 4 MB. */
	static void keepBasket() {
		keep("keepBasket", 4000);
	}

	/** Allocates 1 MB. */
	static void keepReceipt() {
		keep("keepReceipt", 1000);
	}

	/** Memory outside the heap is fresh each time, and the JVM clears it. */
	private static void touch(String name, int pages) {
		ByteBuffer fresh = ByteBuffer.allocateDirect(pages * 4096);
		fresh.put(0, (byte) 1);
		add("alloc", name, pages * 4096.0);
	}

	static void loadCatalogue() {
		touch("loadCatalogue", 12000);
	}

	static void loadPrices() {
		touch("loadPrices", 9000);
	}

	static void countStock() {
		synchronized (stock) {
			sleep(4);
		}
	}

	static void rest() {
		sleep(2);
	}

	private static void warehouse() {
		for (;;) {
			call("countStock", Shop::countStock);
			call("rest", Shop::rest);
		}
	}

	private static void serve() {
		for (int i = 0;; i++) {
			call("priceOrder", Shop::priceOrder);
			call("renderInvoice", Shop::renderInvoice);
			call("askBank", Shop::askBank);
			call("askStock", Shop::askStock);
			call("bookOrder", Shop::bookOrder);
			call("refundOrder", Shop::refundOrder);
			call("keepBasket", Shop::keepBasket);
			call("keepReceipt", Shop::keepReceipt);
			if (i % 5 == 0) {
				call("loadCatalogue", Shop::loadCatalogue);
				call("loadPrices", Shop::loadPrices);
				System.gc(); // frees the blocks outside the heap
			}
		}
	}

	private static synchronized String json() {
		StringBuilder text = new StringBuilder();
		account.forEach((question, amounts) -> {
			text.append(text.isEmpty() ? "{\"" : ",\"").append(question).append("\":{");
			StringBuilder list = new StringBuilder();
			amounts.forEach((name, amount) -> list.append(String.format(Locale.ROOT, "%s\"%s\":%f", list.isEmpty() ? "" : ",", name, amount)));
			text.append(list).append('}');
		});
		return text.append('}').toString();
	}

	public static void main(String[] args) throws IOException {
		for (String question : List.of("cpu", "offcpu", "lock", "alloc", "pagefault")) {
			account.put(question, new TreeMap<>());
		}
		for (Runnable work : List.<Runnable>of(Shop::warehouse, Shop::serve)) {
			Thread thread = new Thread(work);
			thread.setDaemon(true);
			thread.start();
		}
		BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
		while (in.readLine() != null) {
			System.out.println(json());
		}
	}
}
