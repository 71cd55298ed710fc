"""redis-py against a running server: check.py PORT PROTOCOL RESTART_COMMAND. Silent when all is well."""

import subprocess
import sys
import time

import redis
from redis.cache import CacheConfig

PORT, PROTOCOL, RESTART = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
PIPELINE = 1000
RECONNECT_SECONDS = 20


def connect():
    return redis.Redis(port=PORT, protocol=PROTOCOL, socket_timeout=10)


def speaks_the_protocol_and_keeps_bytes(client):
    assert int(client.client_info()["resp"]) == PROTOCOL
    value = bytes(range(256)) * 100
    assert client.set("bytes", value, ex=1000) is True
    assert client.get("bytes") == value
    assert client.get("missing") is None
    assert 0 < client.ttl("bytes") <= 1000


def pipelines(client):
    pipe = client.pipeline(transaction=False)
    for _ in range(PIPELINE):
        pipe.incr("pipelined")
    assert pipe.execute() == list(range(1, PIPELINE + 1))


def errors_stay_in_their_place(client):
    pipe = client.pipeline(transaction=False)
    pipe.set("text", "abc").incr("text").get("text")
    done, error, value = pipe.execute(raise_on_error=False)
    assert done is True and value == b"abc"
    assert isinstance(error, redis.ResponseError) and "not an integer" in str(error), error


def transacts(client):
    with client.pipeline(transaction=True) as pipe:
        assert pipe.set("a", 1).incr("a").mget("a", "none").execute() == [True, 2, [b"2", None]]


def loses_a_watched_race_and_then_wins(client, other):
    with client.pipeline() as pipe:
        pipe.watch("a")
        before = int(pipe.get("a"))
        other.set("a", 10)
        pipe.multi()
        pipe.set("a", before + 1)
        try:
            pipe.execute()
            raise AssertionError("the watched key had changed")
        except redis.WatchError:
            pass
    client.transaction(lambda pipe: (pipe.multi(), pipe.incr("a")), "a")
    assert client.get("a") == b"11"


def next_message(pubsub):
    message = pubsub.get_message(timeout=10)
    assert message is not None, "no message"
    return message["type"], message["channel"], message["data"]


def listens_and_publishes(client, other):
    pubsub = client.pubsub()
    pubsub.subscribe("news")
    assert next_message(pubsub) == ("subscribe", b"news", 1)
    pubsub.psubscribe("n*s")
    assert next_message(pubsub) == ("psubscribe", b"n*s", 2)
    for number in range(PIPELINE):
        assert other.publish("news", number) == 2
    for number in range(PIPELINE):
        data = str(number).encode()
        assert next_message(pubsub) == ("message", b"news", data)
        assert next_message(pubsub) == ("pmessage", b"news", data)
    pubsub.unsubscribe()
    assert next_message(pubsub) == ("unsubscribe", b"news", 1)
    pubsub.close()


def caches_what_it_reads(other):
    if PROTOCOL != 3:
        return  # the library caches in RESP3 only
    client = redis.Redis(port=PORT, protocol=3, socket_timeout=10, cache_config=CacheConfig())
    for number in range(100):
        other.set("cached", number)
        deadline = time.monotonic() + 10
        while client.get("cached") != str(number).encode():
            assert time.monotonic() < deadline, "the cache keeps what is not true any more"
        assert client.get_cache().size == 1
        requests = int(other.info("commandstats")["cmdstat_get"]["calls"])
        assert client.get("cached") == str(number).encode()
        assert int(other.info("commandstats")["cmdstat_get"]["calls"]) == requests, "it was cached"
    other.flushall()
    deadline = time.monotonic() + 10
    while client.get("cached") is not None:
        assert time.monotonic() < deadline, "the cache survives FLUSHALL"
    client.close()


def survives_a_restart(client):
    subprocess.run([RESTART], check=True)
    deadline = time.monotonic() + RECONNECT_SECONDS
    while True:
        try:
            assert client.set("after", "restart") is True
            break
        except redis.ConnectionError:
            assert time.monotonic() < deadline, "no reconnection"
            time.sleep(0.05)
    assert client.get("after") == b"restart"


def main():
    client, other = connect(), connect()
    client.flushall()
    speaks_the_protocol_and_keeps_bytes(client)
    pipelines(client)
    errors_stay_in_their_place(client)
    transacts(client)
    loses_a_watched_race_and_then_wins(client, other)
    listens_and_publishes(client, other)
    caches_what_it_reads(other)
    survives_a_restart(client)
    pipelines(client)


main()
