"""redis-py's cluster client while slots move and primaries change: shards.py PORT SECONDS.

Prints its counts. Fails if a read has another value than the last one that was acknowledged, or one that was sent
without a reply; and at an error that no fault explains."""

import sys
import threading
import time
from collections import Counter

from redis.cluster import RedisCluster
from redis.exceptions import RedisError

PORT, SECONDS = int(sys.argv[1]), float(sys.argv[2])
WORKERS, KEYS = 4, 20
UNEXPLAINED = ("ERR", "READONLY", "WRONGTYPE", "UNBLOCKED", "NOAUTH", "EXECABORT", "CROSSSLOT")
counts, wrong = Counter(), []


def work(number):
    client = RedisCluster(host="127.0.0.1", port=PORT, socket_timeout=5)
    last, unknown = dict.fromkeys(range(KEYS)), {key: set() for key in range(KEYS)}
    end, value = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        value += 1
        key = value % KEYS
        name = f"key:{number}:{key}"
        try:
            found = client.get(name)
            found = None if found is None else int(found)
            if found != last[key] and found not in unknown[key]:
                wrong.append(f"{name} is {found}, not {last[key]} or one of {unknown[key]}")
            last[key] = found
            unknown[key].add(value)
            client.set(name, value)
            unknown[key].discard(value)
            last[key] = value
            counts["done"] += 1
        except (RedisError, OSError) as error:
            text = f"{type(error).__name__}: {error}"
            counts[type(error).__name__] += 1
            if str(error).startswith(UNEXPLAINED):
                wrong.append(text)
    client.close()


threads = [threading.Thread(target=work, args=(number,)) for number in range(WORKERS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(dict(counts))
if wrong or not counts["done"]:
    sys.exit("\n".join(wrong[:10]) or "nothing was done")
