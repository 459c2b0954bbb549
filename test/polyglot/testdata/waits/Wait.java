// As wait.c, in Java.
public class Wait {
    static final long[] spent = new long[3];

    static void pause(int which, int ms) throws InterruptedException {
        long begin = System.nanoTime();
        Thread.sleep(ms);
        spent[which] += System.nanoTime() - begin;
    }

    static void heavy() throws InterruptedException { pause(0, 30); }
    static void light() throws InterruptedException { pause(1, 15); }
    static void rest() throws InterruptedException { pause(2, 5); }
    static void work() throws InterruptedException { heavy(); light(); rest(); }

    public static void main(String[] args) throws InterruptedException {
        for (;;) {
            work();
            System.out.println(System.currentTimeMillis() * 1000000 + " " + spent[0] + " " + spent[1] + " " + spent[2]);
            System.out.flush();
        }
    }
}
