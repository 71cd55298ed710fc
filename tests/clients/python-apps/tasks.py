"""The tasks of check.py's workers. They find the server by the variable SERVER_URL."""

import os
import threading

import redis
from celery import Celery

URL = os.environ["SERVER_URL"]

app = Celery("tasks", broker=URL, backend=URL)
app.conf.update(broker_connection_retry_on_startup=True, result_expires=600, task_track_started=True)


@app.task
def add(left, right):
    return left + right


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=5)
def fails_twice(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return self.request.retries


@app.task(ignore_result=True)
def leave_a_mark(name):
    redis.Redis.from_url(URL).incr(name)


def square(number):
    return number * number


def note(name, value):
    redis.Redis.from_url(URL).rpush(name, value)


def fails():
    raise ValueError("on purpose")


def count_under_a_lock(turns):
    """Increments by reading and writing, which loses turns unless the lock excludes all other threads."""
    client = redis.Redis.from_url(URL)
    for _ in range(turns):
        with client.lock("turnstile", timeout=20, sleep=0.002, blocking_timeout=60):
            client.set("counted", int(client.get("counted") or 0) + 1)


if __name__ == "__main__":
    threads = [threading.Thread(target=count_under_a_lock, args=(25,)) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
