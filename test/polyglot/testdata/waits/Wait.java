// Like wait.c, in Java.
public class Wait {
    static final long[] spent = new long[3];

    static void pause(int which, int ms) throws InterruptedException {
        long begin = System.nanoTime();
        Thread.sleep(ms);
        spent[which] += System.nanoTime() - begin;
    }

    static void heavy() throws InterruptedException { pause(0, 180); }
    static void light() throws InterruptedException { pause(1, 90); }
    static void rest() throws InterruptedException { pause(2, 30); }
    static void work() throws InterruptedException { heavy(); light(); rest(); }

    public static void main(String[] args) throws InterruptedException {
        for (int rounds = Integer.parseInt(args[0]); rounds > 0; rounds--) {
            work();
        }
        System.out.println(spent[0] + " " + spent[1] + " " + spent[2]);
    }
}
