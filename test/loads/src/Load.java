import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;

/** 60 % of the CPU time is in heavy, 30 % in light, 10 % in rest: each works until it has its share. */
public class Load {
    static final ThreadMXBean threads = ManagementFactory.getThreadMXBean();
    static long heavyUsed, heavyDue, lightUsed, lightDue, restUsed, restDue;
    static volatile long sink;

    static long cpu() {
        return threads.getCurrentThreadCpuTime();
    }

    static void heavy() {
        heavyDue += 6000000;
        while (heavyUsed < heavyDue) {
            long start = cpu(), x = 1;
            for (int i = 0; i < 300000; i++) x = (x * 31 + i) & 0xffffff;
            sink = x;
            heavyUsed += cpu() - start;
        }
    }

    static void light() {
        lightDue += 3000000;
        while (lightUsed < lightDue) {
            long start = cpu(), x = 1;
            for (int i = 0; i < 300000; i++) x = (x * 31 + i) & 0xffffff;
            sink = x;
            lightUsed += cpu() - start;
        }
    }

    static void rest() {
        restDue += 1000000;
        while (restUsed < restDue) {
            long start = cpu(), x = 1;
            for (int i = 0; i < 300000; i++) x = (x * 31 + i) & 0xffffff;
            sink = x;
            restUsed += cpu() - start;
        }
    }

    static void work() {
        heavy();
        light();
        rest();
    }

    static void step() {
        work();
    }

    static void run() {
        step();
        System.out.println("ready");
        while (true) step();
    }

    public static void main(String[] args) {
        run();
    }
}
