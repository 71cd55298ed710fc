// A line server whose threads share a ReentrantLock over a sleep of 10 ms.
//
// Known cause: 6 clients at once wait for `LockServer.shared`, most of them at any time.
// With `own` as second argument, the twin: each connection has a lock of its own, and nothing waits.
//
// java LockServer.java PORT [own]; a line in, a line out.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.concurrent.locks.ReentrantLock;

public class LockServer {
    static final ReentrantLock shared = new ReentrantLock();

    public static void main(String[] args) throws Exception {
        boolean own = args.length > 1 && args[1].equals("own");
        ServerSocket listener =
            new ServerSocket(Integer.parseInt(args[0]), 50, InetAddress.getByName("127.0.0.1"));
        System.out.println("listening " + listener.getLocalPort());
        while (true) {
            Socket client = listener.accept();
            ReentrantLock lock = own ? new ReentrantLock() : shared;
            new Thread(() -> serve(client, lock)).start();
        }
    }

    static void serve(Socket client, ReentrantLock lock) {
        try (client) {
            BufferedReader in = new BufferedReader(new InputStreamReader(client.getInputStream()));
            OutputStream out = client.getOutputStream();
            String line;
            while ((line = in.readLine()) != null) {
                update(lock);
                out.write((line + "\n").getBytes());
            }
        } catch (Exception e) {
            // The client went away.
        }
    }

    static void update(ReentrantLock lock) throws InterruptedException {
        lock.lock();
        try {
            Thread.sleep(10);
        } finally {
            lock.unlock();
        }
    }
}
