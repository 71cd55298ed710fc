// Lettuce with its default settings during a FAILOVER: Failover.java PORT FAILOVER. Silent when all is well.
//
// Threads count up through one connection, which knows the address of the first server alone. FAILOVER, a
// command, changes the roles. The client follows the servers' messages (CLIENT MAINT_NOTIFICATIONS).

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.function.BooleanSupplier;

public class Failover {
    static final int LOOPS = 8;
    static final long PATIENCE_MS = 20_000;

    static void check(boolean condition, String text) {
        if (!condition) {
            System.err.println(text);
            System.exit(1);
        }
    }

    static void until(String what, List<String> errors, BooleanSupplier isSo) throws InterruptedException {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (!isSo.getAsBoolean()) {
            check(System.currentTimeMillis() < deadline, "not in time: " + what + ", errors: " + errors);
            Thread.sleep(20);
        }
    }

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0]);
        RedisClient client = RedisClient.create(RedisURI.create("127.0.0.1", port));
        StatefulRedisConnection<String, String> connection = client.connect();
        AtomicLongArray counts = new AtomicLongArray(LOOPS);
        AtomicBoolean isOver = new AtomicBoolean();
        List<String> errors = Collections.synchronizedList(new ArrayList<>());
        List<Thread> loops = new ArrayList<>();
        for (int number = 0; number < LOOPS; number++) {
            int own = number;
            Thread loop = new Thread(() -> {
                while (!isOver.get()) {
                    try {
                        counts.set(own, connection.sync().incr("count:" + own));
                    } catch (RedisException error) {
                        errors.add(error.toString());
                    }
                }
            });
            loop.start();
            loops.add(loop);
        }
        BooleanSupplier allCount = () -> {
            for (int number = 0; number < LOOPS; number++) {
                if (counts.get(number) == 0) return false;
            }
            return true;
        };
        until("loops begin", errors, allCount);
        int status = new ProcessBuilder(args[1]).inheritIO().start().waitFor();
        check(status == 0, "the change of roles failed");
        long[] before = new long[LOOPS];
        for (int number = 0; number < LOOPS; number++) before[number] = counts.get(number);
        until("loops go on at the new primary", errors, () -> {
            for (int number = 0; number < LOOPS; number++) {
                if (counts.get(number) <= before[number] + 20) return false;
            }
            return true;
        });
        isOver.set(true);
        for (Thread loop : loops) loop.join();
        // The commands on their way when the roles change fail: this library repeats none that has a reply.
        // There is at most one for each loop.
        boolean areExpected = errors.stream().allMatch(one -> one.contains("LOADING"));
        check(errors.size() <= LOOPS && areExpected, "errors: " + errors);
        RedisClient other = RedisClient.create(RedisURI.create("127.0.0.2", port));
        var primary = other.connect().sync();
        for (int number = 0; number < LOOPS; number++) {
            String stored = primary.get("count:" + number);
            check(stored.equals(String.valueOf(counts.get(number))),
                stored + " increments for " + counts.get(number) + " replies");
        }
        other.shutdown();
        client.shutdown();
    }
}
