// Jedis' cluster client while slots move and primaries change: Shards PORT SECONDS.
//
// Prints its counts. Fails if a read has another value than the last one that was acknowledged, or one that was
// sent without a reply; and at an error that no fault explains.

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.exceptions.JedisException;

public class Shards {
    static final Map<String, Integer> counts = new ConcurrentHashMap<>();
    static volatile Throwable wrong;

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static void count(String what) {
        counts.merge(what, 1, Integer::sum);
    }

    static void work(JedisCluster client, int worker, long end) {
        Map<Integer, String> last = new HashMap<>();
        Set<String> unknown = new HashSet<>();
        for (int value = 1; System.nanoTime() < end; value++) {
            int key = value % 20; // so values differ between keys
            String name = "key:" + worker + ":" + key, text = Integer.toString(value);
            try {
                String found = client.get(name);
                boolean isKnown = Objects.equals(found, last.get(key)) || unknown.contains(found);
                check(isKnown, name + " is " + found + ", not " + last.get(key));
                last.put(key, found);
                unknown.add(text);
                client.set(name, text);
                unknown.remove(text);
                last.put(key, text);
                count("done");
            } catch (JedisException error) {
                String message = String.valueOf(error.getMessage());
                String codes = "^(ERR|READONLY|WRONGTYPE|UNBLOCKED|NOAUTH|EXECABORT|CROSSSLOT)(?s:.*)";
                check(!message.matches(codes), message);
                count(error.getClass().getSimpleName());
            }
        }
    }

    public static void main(String[] args) throws Exception {
        long end = System.nanoTime() + (long) (Double.parseDouble(args[1]) * 1e9);
        try (JedisCluster client = new JedisCluster(new HostAndPort("127.0.0.1", Integer.parseInt(args[0])))) {
            Thread[] threads = new Thread[4];
            for (int number = 0; number < threads.length; number++) {
                int worker = number;
                threads[number] = new Thread(() -> work(client, worker, end));
                threads[number].setUncaughtExceptionHandler((thread, error) -> wrong = error);
                threads[number].start();
            }
            for (Thread thread : threads) thread.join();
        }
        System.out.println(counts);
        if (wrong != null) throw new AssertionError(wrong);
        check(counts.containsKey("done"), "nothing was done");
    }
}
