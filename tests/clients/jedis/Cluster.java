// Jedis' cluster client: Cluster PORT PROTOCOL. Silent when all is well.
//
// PORT is that of a node of a cluster that owns all slots.

import java.util.List;
import java.util.Set;
import redis.clients.jedis.ClusterPipeline;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.RedisProtocol;

public class Cluster {
    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    public static void main(String[] args) {
        RedisProtocol protocol = args[1].equals("3") ? RedisProtocol.RESP3 : RedisProtocol.RESP2;
        Set<HostAndPort> nodes = Set.of(new HostAndPort("127.0.0.1", Integer.parseInt(args[0])));
        DefaultJedisClientConfig config = DefaultJedisClientConfig.builder().protocol(protocol).build();
        try (JedisCluster client = new JedisCluster(nodes, config)) {
            for (int number = 0; number < 200; number++) {
                String key = "key:" + number;
                check(client.set(key, key).equals("OK") && client.get(key).equals(key), key);
            }
            try (ClusterPipeline pipe = client.pipelined()) {
                for (int number = 0; number < 200; number++) pipe.append("key:" + number, "!");
                pipe.sync();
            }
            Object value = client.eval("return redis.call('get', KEYS[1])", List.of("key:7"), List.of());
            check(value.equals("key:7!"), "a script: " + value);
            for (int number = 0; number < 200; number++) check(client.del("key:" + number) == 1, "DEL");
        }
    }
}
