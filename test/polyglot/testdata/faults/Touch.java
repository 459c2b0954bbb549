import java.io.File;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.lang.reflect.Field;

// Like touch.c, in Java. The pages belong to a file in memory, which is mapped each time.
public class Touch {
    static final long[] touched = new long[3];
    static FileChannel file;
    static sun.misc.Unsafe unsafe;

    static void touch(int which, int pages) throws Exception {
        ByteBuffer fresh = file.map(FileChannel.MapMode.READ_WRITE, 0, pages * 4096);
        for (int i = 0; i < pages; i++) {
            fresh.put(i * 4096, (byte) 1);
        }
        unsafe.invokeCleaner(fresh);
        touched[which] += pages;
    }

    static void heavy() throws Exception { touch(0, 600); }
    static void light() throws Exception { touch(1, 300); }
    static void rest() throws Exception { touch(2, 100); }
    static void work() throws Exception { heavy(); light(); rest(); }

    public static void main(String[] args) throws Exception {
        File name = File.createTempFile("touch", null, new File("/dev/shm"));
        file = new RandomAccessFile(name, "rw").getChannel();
        name.delete();
        Field f = sun.misc.Unsafe.class.getDeclaredField("theUnsafe");
        f.setAccessible(true);
        unsafe = (sun.misc.Unsafe) f.get(null);
        for (int rounds = Integer.parseInt(args[0]); rounds > 0; rounds--) {
            work();
            Thread.sleep(60);
        }
        System.out.println(touched[0] + " " + touched[1] + " " + touched[2]);
    }
}
