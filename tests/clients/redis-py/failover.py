"""redis-py with its default settings during a FAILOVER: failover.py PORT FAILOVER.

Silent when all is well.

Threads count up through one client, which knows the address of the first server alone. FAILOVER, a command,
changes the roles. The client follows the servers' messages (CLIENT MAINT_NOTIFICATIONS): no command fails,
and none is lost or done twice."""

import subprocess
import sys
import threading
import time

import redis

PORT, FAILOVER = int(sys.argv[1]), sys.argv[2]
THREADS = 8
PATIENCE_SECONDS = 20


def await_it(what, is_so):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


client = redis.Redis("127.0.0.1", PORT)
counts, errors, is_over = [0] * THREADS, [], threading.Event()


def count(number):
    while not is_over.is_set():
        try:
            counts[number] = client.incr(f"count:{number}")
        except redis.RedisError as error:
            errors.append(repr(error))


threads = [threading.Thread(target=count, args=[number]) for number in range(THREADS)]
for thread in threads:
    thread.start()
try:
    await_it("clients begin", lambda: all(counts))
    subprocess.run([FAILOVER], check=True)
    before = list(counts)
    go_on = lambda: all(now > was + 20 for now, was in zip(counts, before))
    await_it("clients go on at the new primary", go_on)
finally:
    is_over.set()
    for thread in threads:
        thread.join()
assert not errors, f"{len(errors)} errors: {errors[:3]}"
primary = redis.Redis("127.0.0.2", PORT)
for number, counted in enumerate(counts):
    stored = int(primary.get(f"count:{number}"))
    assert stored == counted, f"{stored} increments for {counted} replies"
