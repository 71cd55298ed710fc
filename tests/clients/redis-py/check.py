"""redis-py against a running server: check.py PORT PROTOCOL RESTART_COMMAND. Silent when all is well."""

import subprocess
import sys
import time

import redis

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
    survives_a_restart(client)
    pipelines(client)


main()
