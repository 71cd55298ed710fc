"""redis-py's cluster client: cluster.py PORT PROTOCOL. Silent when all is well.

PORT is that of a node of a cluster that owns all slots."""

import sys

from redis.cluster import RedisCluster

PORT, PROTOCOL = int(sys.argv[1]), int(sys.argv[2])
KEYS = [f"key:{number}" for number in range(200)]

client = RedisCluster(host="127.0.0.1", port=PORT, protocol=PROTOCOL)
for key in KEYS:
    assert client.set(key, key) is True
assert [client.get(key).decode() for key in KEYS] == KEYS
assert client.mget_nonatomic(KEYS) == [key.encode() for key in KEYS]
pipe = client.pipeline()
for key in KEYS:
    pipe.append(key, "!")
assert pipe.execute() == [len(key) + 1 for key in KEYS]
assert sorted(client.scan_iter("key:*", count=20)) == sorted(key.encode() for key in KEYS)
assert client.eval("return redis.call('get', KEYS[1])", 1, "key:7") == b"key:7!"
assert client.dbsize(target_nodes=RedisCluster.PRIMARIES) == len(KEYS)
assert client.cluster_info(target_nodes=RedisCluster.RANDOM)["cluster_state"] == "ok"
with client.pipeline(transaction=True) as transaction:
    transaction.set("{tag}1", "a").set("{tag}2", "b").get("{tag}1")
    assert transaction.execute()[-1] == b"a"
listener = client.pubsub()
listener.ssubscribe("{tag}channel")
assert listener.get_sharded_message(timeout=5)["type"] == "ssubscribe"
assert client.spublish("{tag}channel", "hello") == 1
assert listener.get_sharded_message(timeout=5)["data"] == b"hello"
listener.close()
client.flushall(target_nodes=RedisCluster.PRIMARIES)
client.close()
