// Jedis against a running server: Check PORT PROTOCOL RESTART_COMMAND. Silent when all is well.

import java.util.Arrays;
import java.util.List;
import java.util.stream.LongStream;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.SetParams;

public class Check {
    static final int PIPELINE = 1000;
    static final long RECONNECT_MS = 20_000;

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static void speaksTheProtocolAndKeepsBytes(Jedis client, String protocol) {
        check(client.clientInfo().contains("resp=" + protocol), "the protocol: " + client.clientInfo());
        byte[] key = "bytes".getBytes(), value = new byte[25_600];
        for (int index = 0; index < value.length; index++) value[index] = (byte) index;
        check(client.set(key, value, SetParams.setParams().ex(1000)).equals("OK"), "SET");
        check(Arrays.equals(client.get(key), value), "the bytes come back");
        check(client.get("missing") == null, "a missing key");
        long ttl = client.ttl("bytes");
        check(ttl > 0 && ttl <= 1000, "TTL " + ttl);
    }

    static void pipelines(Jedis client) {
        Pipeline pipe = client.pipelined();
        for (int turn = 0; turn < PIPELINE; turn++) pipe.incr("pipelined");
        List<Object> replies = pipe.syncAndReturnAll();
        check(replies.equals(LongStream.rangeClosed(1, PIPELINE).boxed().toList()), "a pipeline in order");
    }

    static void errorsStayInTheirPlace(Jedis client) {
        Pipeline pipe = client.pipelined();
        Response<String> done = pipe.set("text", "abc");
        Response<Long> failed = pipe.incr("text");
        Response<String> value = pipe.get("text");
        pipe.sync();
        check(done.get().equals("OK") && value.get().equals("abc"), "the others");
        try {
            failed.get();
            throw new AssertionError("INCR of a text");
        } catch (JedisDataException error) {
            check(error.getMessage().contains("not an integer"), error.getMessage());
        }
    }

    static void transacts(Jedis client) {
        Transaction transaction = client.multi();
        transaction.set("a", "1");
        transaction.incr("a");
        transaction.mget("a", "none");
        check(transaction.exec().equals(List.of("OK", 2L, Arrays.asList("2", null))), "a transaction");
    }

    static void losesAWatchedRaceAndThenWins(Jedis client, Jedis other) {
        client.watch("a");
        other.set("a", "10");
        Transaction lost = client.multi();
        lost.incr("a");
        check(lost.exec() == null, "the watched key had changed");
        client.watch("a");
        Transaction won = client.multi();
        won.incr("a");
        check(won.exec().equals(List.of(11L)), "nobody else writes");
    }

    /** A plain connection is lost with the server; the pool reconnects. */
    static void survivesARestart(JedisPooled pool, String restart) throws Exception {
        check(pool.set("before", "restart").equals("OK"), "the pool has a connection that will break");
        check(new ProcessBuilder(restart).inheritIO().start().waitFor() == 0, "the restart command");
        long deadline = System.currentTimeMillis() + RECONNECT_MS;
        while (true) {
            try {
                check(pool.set("after", "restart").equals("OK"), "SET");
                break;
            } catch (JedisConnectionException lost) {
                check(System.currentTimeMillis() < deadline, "no reconnection");
                Thread.sleep(50);
            }
        }
        check(pool.get("after").equals("restart"), "after the restart");
    }

    public static void main(String[] args) throws Exception {
        HostAndPort address = new HostAndPort("127.0.0.1", Integer.parseInt(args[0]));
        RedisProtocol protocol = args[1].equals("3") ? RedisProtocol.RESP3 : RedisProtocol.RESP2;
        DefaultJedisClientConfig config = DefaultJedisClientConfig.builder().protocol(protocol).build();
        try (Jedis client = new Jedis(address, config); Jedis other = new Jedis(address, config)) {
            client.flushAll();
            speaksTheProtocolAndKeepsBytes(client, args[1]);
            pipelines(client);
            errorsStayInTheirPlace(client);
            transacts(client);
            losesAWatchedRaceAndThenWins(client, other);
        }
        try (JedisPooled pool = new JedisPooled(address, config)) {
            survivesARestart(pool, args[2]);
        }
        try (Jedis client = new Jedis(address, config)) {
            pipelines(client);
        }
    }
}
