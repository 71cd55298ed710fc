// A line server that keeps most of a small heap and makes garbage for each request.
//
// Known cause: with -Xmx64m, garbage collection stops the program for a fifth of the time and more; with
// -XX:+UseSerialGC for nearly all of it.
// With `small` as second argument, the twin: it keeps nothing and makes no garbage.
//
// java -Xmx64m GarbageServer.java PORT [small]; a line in, a line out.

import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;

public class GarbageServer {
    static final List<byte[]> kept = new ArrayList<>();
    static volatile Object last;

    public static void main(String[] args) throws Exception {
        boolean small = args.length > 1 && args[1].equals("small");
        for (int i = 0; !small && i < 400_000; i++) {
            kept.add(new byte[80]);
        }
        ServerSocket listener =
            new ServerSocket(Integer.parseInt(args[0]), 50, InetAddress.getByName("127.0.0.1"));
        System.out.println("listening " + listener.getLocalPort());
        while (true) {
            Socket client = listener.accept();
            new Thread(() -> serve(client, small ? 0 : 10_000)).start();
        }
    }

    static void serve(Socket client, int objects) {
        try (client) {
            InputStream in = client.getInputStream();
            OutputStream out = client.getOutputStream();
            byte[] line = new byte[1024];
            for (int length; (length = in.read(line)) > 0; ) {
                if (line[length - 1] == '\n') {
                    work(objects);
                }
                out.write(line, 0, length);
            }
        } catch (Exception e) {
            // The client went away.
        }
    }

    static void work(int objects) {
        for (int i = 0; i < objects; i++) {
            last = new byte[200];
        }
    }
}
