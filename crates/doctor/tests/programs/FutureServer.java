// A line server that waits 50 ms for a future which never completes.
//
// Known cause: each request waits in `FutureServer.ask` until its time is up; nothing else takes time.
//
// java FutureServer.java PORT; a line in, a line out.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

public class FutureServer {
    public static void main(String[] args) throws Exception {
        ServerSocket listener =
            new ServerSocket(Integer.parseInt(args[0]), 50, InetAddress.getByName("127.0.0.1"));
        System.out.println("listening " + listener.getLocalPort());
        while (true) {
            Socket client = listener.accept();
            new Thread(() -> serve(client)).start();
        }
    }

    static void serve(Socket client) {
        try (client) {
            BufferedReader in = new BufferedReader(new InputStreamReader(client.getInputStream()));
            OutputStream out = client.getOutputStream();
            String line;
            while ((line = in.readLine()) != null) {
                out.write((ask(line) + "\n").getBytes());
            }
        } catch (Exception e) {
            // The client went away.
        }
    }

    static String ask(String line) throws Exception {
        CompletableFuture<String> never = new CompletableFuture<>();
        try {
            return never.get(50, TimeUnit.MILLISECONDS);
        } catch (TimeoutException e) {
            return line;
        }
    }
}
