"""redis-py's Sentinel client, redis-sentinel and three servers: sentinel.py PROTOCOL SERVER.

Silent when all is well.

The primary is killed while a client counts up; the client goes on with the replica that takes its place."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import redis
from redis.sentinel import Sentinel

PROTOCOL, SERVER = int(sys.argv[1]), sys.argv[2]
PATIENCE_SECONDS = 30


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def await_it(what, is_so):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if is_so():
                return
        except (redis.RedisError, OSError):
            pass
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)


def start(folder, processes, *command):
    with open(os.path.join(folder, "log"), "ab") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    processes.append(process)
    return process


def start_servers(folder, processes):
    servers = {}
    for number in range(3):
        port, own = free_port(), os.path.join(folder, str(number))
        os.mkdir(own)
        args = ["--port", str(port), "--bind", "127.0.0.1", "--dir", own, "--save", "",
                "--repl-diskless-sync-delay", "0"]
        if servers:
            args += ["--replicaof", f"127.0.0.1 {next(iter(servers))}"]
        servers[port] = start(own, processes, SERVER, *args)
        await_it("a server answers", redis.Redis(port=port).ping)
    return servers


def start_sentinel(folder, processes, primary):
    port, config = free_port(), os.path.join(folder, "sentinel.conf")
    with open(config, "w") as file:
        file.write(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor it 127.0.0.1 {primary} 1\n"
            "sentinel down-after-milliseconds it 1000\nsentinel failover-timeout it 4000\n"
        )
    start(folder, processes, "redis-sentinel", config)
    await_it("the sentinel answers", redis.Redis(port=port).ping)
    return Sentinel([("127.0.0.1", port)], socket_timeout=2, protocol=PROTOCOL)


def count_until(client, number):
    """Counts up until this many replies, whatever happens to the connection; returns the last count."""
    count, deadline = 0, time.monotonic() + PATIENCE_SECONDS
    while number > 0:
        assert time.monotonic() < deadline, "clients do not go on"
        try:
            count = client.incr("count")
            number -= 1
        except (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError):
            time.sleep(0.02)
    return count


def main(folder, processes):
    servers = start_servers(folder, processes)
    first = next(iter(servers))
    sentinel = start_sentinel(folder, processes, first)
    await_it("the replicas are known", lambda: len(sentinel.discover_slaves("it")) == 2)
    client = sentinel.master_for("it", socket_timeout=2, protocol=PROTOCOL)
    count = count_until(client, 200)
    assert client.wait(2, 10_000) == 2
    servers[first].send_signal(signal.SIGKILL)
    assert count_until(client, 200) >= count + 200, "something was lost that both replicas had"
    assert sentinel.discover_master("it")[1] != first
    replica = sentinel.slave_for("it", socket_timeout=2, protocol=PROTOCOL)
    await_it("the other one follows", lambda: replica.get("count") == client.get("count"))


with tempfile.TemporaryDirectory() as folder:
    processes = []
    try:
        main(folder, processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
