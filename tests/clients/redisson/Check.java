// Redisson against a running server: Check PORT PROTOCOL RESTART_COMMAND. Silent when all is well.
//
// Nearly all of its commands are scripts, and published messages wake waiting clients.

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.redisson.Redisson;
import org.redisson.api.LocalCachedMapOptions;
import org.redisson.api.RBatch;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RLocalCachedMap;
import org.redisson.api.RLock;
import org.redisson.api.RMapCache;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RTopic;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;
import org.redisson.config.Protocol;

public class Check {
    static final int THREADS = 6, TURNS = 40;
    static final long PATIENCE_S = 30;

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static RedissonClient connect(String port, String protocol) {
        Config config = new Config().setCodec(new StringCodec());
        config.setProtocol(protocol.equals("3") ? Protocol.RESP3 : Protocol.RESP2);
        config.useSingleServer()
            .setAddress("redis://127.0.0.1:" + port)
            .setConnectionMinimumIdleSize(4)
            .setConnectionPoolSize(16);
        return Redisson.create(config);
    }

    interface Body {
        void run() throws Exception;
    }

    static void inThreads(Body body) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(THREADS);
        List<Future<?>> all = java.util.stream.IntStream.range(0, THREADS)
            .<Future<?>>mapToObj(thread -> threads.submit(() -> { body.run(); return null; }))
            .toList();
        for (Future<?> one : all) one.get(PATIENCE_S, TimeUnit.SECONDS);
        threads.shutdown();
    }

    static void locksExclude(RedissonClient one, RedissonClient other) throws Exception {
        AtomicInteger turns = new AtomicInteger();
        inThreads(() -> {
            for (int turn = 0; turn < TURNS; turn++) {
                RedissonClient client = turns.getAndIncrement() % 2 == 0 ? one : other;
                RLock lock = client.getLock("turnstile");
                lock.lock();
                int before = Integer.parseInt(client.<String>getBucket("counted").get() == null
                    ? "0" : client.<String>getBucket("counted").get());
                client.getBucket("counted").set(String.valueOf(before + 1));
                lock.unlock();
            }
        });
        check(one.getBucket("counted").get().equals(String.valueOf(THREADS * TURNS)), "turns were lost");
        RLock fair = one.getFairLock("fair");
        check(fair.tryLock(1, 10, TimeUnit.SECONDS) && fair.isHeldByCurrentThread(), "a fair lock");
        fair.unlock();
        RReadWriteLock both = one.getReadWriteLock("both");
        both.readLock().lock();
        check(!both.writeLock().tryLock(), "a writer beside a reader");
        both.readLock().unlock();
    }

    static void semaphoresAndLatchesWake(RedissonClient one, RedissonClient other) throws Exception {
        RSemaphore semaphore = one.getSemaphore("places");
        check(semaphore.trySetPermits(2), "permits");
        AtomicInteger inside = new AtomicInteger(), most = new AtomicInteger();
        inThreads(() -> {
            for (int turn = 0; turn < 10; turn++) {
                semaphore.acquire();
                most.accumulateAndGet(inside.incrementAndGet(), Math::max);
                inside.decrementAndGet();
                semaphore.release();
            }
        });
        check(most.get() <= 2 && semaphore.availablePermits() == 2, "two places, not " + most);
        RCountDownLatch latch = one.getCountDownLatch("latch");
        latch.trySetCount(3);
        new Thread(() -> {
            for (int at = 0; at < 3; at++) other.getCountDownLatch("latch").countDown();
        }).start();
        check(latch.await(PATIENCE_S, TimeUnit.SECONDS), "the latch opens");
    }

    static void queuesDeliver(RedissonClient one, RedissonClient other) throws Exception {
        RBlockingQueue<String> queue = one.getBlockingQueue("queue");
        RDelayedQueue<String> delayed = other.getDelayedQueue(other.getBlockingQueue("queue"));
        long asked = System.nanoTime();
        delayed.offer("late", 700, TimeUnit.MILLISECONDS);
        delayed.offer("soon", 200, TimeUnit.MILLISECONDS);
        check("soon".equals(queue.poll(PATIENCE_S, TimeUnit.SECONDS)), "the first");
        check("late".equals(queue.poll(PATIENCE_S, TimeUnit.SECONDS)), "the second");
        check(System.nanoTime() - asked > Duration.ofMillis(650).toNanos(), "came early");
        delayed.destroy();
        RTopic topic = one.getTopic("news");
        CountDownLatch heard = new CountDownLatch(100);
        topic.addListener(String.class, (channel, text) -> heard.countDown());
        for (int at = 0; at < 100; at++) other.getTopic("news").publish("text " + at);
        check(heard.await(PATIENCE_S, TimeUnit.SECONDS), "messages are missing: " + heard.getCount());
        topic.removeAllListeners();
    }

    static void mapsExpireAndAreCached(RedissonClient one, RedissonClient other) throws Exception {
        RMapCache<String, String> map = one.getMapCache("map");
        map.put("short", "1", 300, TimeUnit.MILLISECONDS);
        map.put("long", "2");
        check(map.get("short").equals("1") && map.size() == 2, "both are there");
        Thread.sleep(500);
        check(map.get("short") == null && map.get("long").equals("2"), "one has expired");
        map.destroy();
        LocalCachedMapOptions<String, String> options = LocalCachedMapOptions.defaults();
        RLocalCachedMap<String, String> cached = one.getLocalCachedMap("cached", options);
        RLocalCachedMap<String, String> writer = other.getLocalCachedMap("cached", options);
        cached.put("k", "old");
        check(writer.get("k").equals("old"), "a value of another's");
        cached.put("k", "new");
        long deadline = System.nanoTime() + Duration.ofSeconds(PATIENCE_S).toNanos();
        while (!writer.get("k").equals("new")) check(System.nanoTime() < deadline, "a cache is not told");
        cached.destroy();
        writer.destroy();
    }

    static void batchesAreAtomic(RedissonClient one) {
        RBatch batch = one.createBatch(org.redisson.api.BatchOptions.defaults()
            .executionMode(org.redisson.api.BatchOptions.ExecutionMode.IN_MEMORY_ATOMIC));
        Map<String, String> fields = new HashMap<>();
        for (int at = 0; at < 200; at++) fields.put("field:" + at, "value:" + at);
        batch.getMap("fields").putAllAsync(fields);
        batch.getAtomicLong("number").addAndGetAsync(41);
        batch.getAtomicLong("number").incrementAndGetAsync();
        List<?> replies = batch.execute().getResponses();
        check(replies.subList(1, 3).equals(List.of(41L, 42L)), "replies " + replies);
        check(one.getMap("fields").readAllMap().equals(fields), "the fields");
    }

    public static void main(String[] args) throws Exception {
        RedissonClient one = connect(args[0], args[1]), other = connect(args[0], args[1]);
        one.getKeys().flushall();
        locksExclude(one, other);
        semaphoresAndLatchesWake(one, other);
        queuesDeliver(one, other);
        mapsExpireAndAreCached(one, other);
        batchesAreAtomic(one);
        one.shutdown();
        other.shutdown();
    }
}
