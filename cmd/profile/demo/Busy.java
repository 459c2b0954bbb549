// hashOrders uses half of the CPU time, sortOrders 30 % and renderInvoices 20 %.
import java.lang.management.ManagementFactory;

class Busy {
    static int sink;

    static void hashOrders() { for (int i = 0; i < 1000000; i++) sink = (sink ^ i) * 31; }
    static void sortOrders() { for (int i = 0; i < 1000000; i++) sink = (sink ^ i) * 37; }
    static void renderInvoices() { for (int i = 0; i < 1000000; i++) sink = (sink ^ i) * 41; }

    static void spend(Runnable work, int percent) {
        var threads = ManagementFactory.getThreadMXBean();
        long until = threads.getCurrentThreadCpuTime() + percent * 1000000L;
        while (threads.getCurrentThreadCpuTime() < until) work.run();
    }

    public static void main(String[] args) {
        for (;;) {
            spend(Busy::hashOrders, 50);
            spend(Busy::sortOrders, 30);
            spend(Busy::renderInvoices, 20);
        }
    }
}
