"""Python's job queues, Django and locks against a running server: check.py PORT PROTOCOL RESTART_COMMAND.

Celery and rq have real workers, in separate processes. Silent when all is well.
"""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import redis

HERE = Path(__file__).parent
PORT, PROTOCOL = int(sys.argv[1]), int(sys.argv[2])
URL = f"redis://127.0.0.1:{PORT}/0"
os.environ["SERVER_URL"] = URL
PATIENCE = 40


def eventually(what, holds):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE} seconds: {what}"
        time.sleep(0.02)


@contextmanager
def running(*arguments):
    """Runs python with these arguments, and asks the process to end when the block does."""
    process = subprocess.Popen([sys.executable, "-m", *arguments], cwd=HERE)
    try:
        yield process
        process.terminate()
        assert process.wait(PATIENCE) == 0, f"{arguments[0]} ended with {process.returncode}"
    finally:
        process.kill()


def celery_works_off_tasks(client):
    from celery import chain, chord, group
    from tasks import add, app, fails_twice, leave_a_mark, total

    # Tasks sent before a worker starts wait.
    early = [add.delay(number, 1) for number in range(50)]
    with running("celery", "--app", "tasks", "worker", "--concurrency", "2", "--loglevel", "ERROR"):
        assert [result.get(timeout=PATIENCE) for result in early] == list(range(1, 51))
        assert [len(answers) for answers in app.control.ping(timeout=2)] == [1]
        results = group(add.s(number, number) for number in range(100)).apply_async()
        assert results.get(timeout=PATIENCE) == [2 * number for number in range(100)]
        assert chain(add.s(1, 2), add.s(4), add.s(8))().get(timeout=PATIENCE) == 15
        assert chord((add.s(number, 0) for number in range(30)), total.s())().get(timeout=PATIENCE) == 435
        assert fails_twice.delay().get(timeout=PATIENCE) == 2
        asked = time.monotonic()
        assert add.apply_async((1, 1), countdown=1).get(timeout=PATIENCE) == 2
        assert time.monotonic() - asked > 0.9, "a task with a countdown came early"
        revoked = leave_a_mark.apply_async(("revoked",), countdown=1)
        revoked.revoke()
        leave_a_mark.apply_async(("kept",), countdown=1)
        eventually("a task of the future is run", lambda: client.get("kept") == b"1")
        assert client.get("revoked") is None, "a task ran that had been revoked"
        assert 0 < client.ttl(f"celery-task-meta-{early[0].id}") <= 600
    assert client.llen("celery") == 0


def rq_works_off_jobs(client):
    from rq import Queue, Retry, Worker
    from tasks import fails, note, square

    queue = Queue(connection=client)
    with running("rq.cli", "worker", "--url", URL, "--with-scheduler", "--logging_level", "ERROR"):
        jobs = [queue.enqueue(square, number) for number in range(10)]
        first = queue.enqueue(note, "order", "first")
        queue.enqueue(note, "order", "second", depends_on=first)
        soon = queue.enqueue_in(timedelta(seconds=1), square, 12)
        broken = queue.enqueue(fails, retry=Retry(max=1))
        eventually("all jobs are done",
                   lambda: all(job.get_status(refresh=True) == "finished" for job in jobs))
        assert [job.return_value() for job in jobs] == [number * number for number in range(10)]
        eventually("what depends on another job is done", lambda: client.llen("order") == 2)
        assert client.lrange("order", 0, -1) == [b"first", b"second"]
        eventually("a scheduled job is done", lambda: soon.get_status(refresh=True) == "finished")
        assert soon.return_value() == 144
        eventually("a job fails for good", lambda: broken.get_status(refresh=True) == "failed")
        assert queue.failed_job_registry.get_job_ids() == [broken.id]
        assert len(queue) == 0
        # Between two jobs, rq records the request to end and then waits for another job, for minutes. If it
        # is "idle" and still sends commands, the signal's exception leaves replies in redis-py's connection,
        # which the last pipeline takes for its own. So the worker has to be blocked, with all replies read.
        eventually("the worker is idle",
                   lambda: [one.get_state() for one in Worker.all(queue=queue)] == ["idle"])
        eventually("the worker waits", lambda: any("b" in one["flags"] for one in client.client_list()))


def count_visits(request):
    from django.http import HttpResponse

    visits = request.session.get("visits", 0) + 1
    request.session["visits"] = visits
    return HttpResponse(str(visits))


urlpatterns = []


def django_keeps_its_cache_and_sessions(client):
    import django
    from django.conf import settings
    from django.urls import path

    cache_settings = {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": f"redis://127.0.0.1:{PORT}/1?protocol={PROTOCOL}",
    }
    settings.configure(
        ALLOWED_HOSTS=["*"],
        CACHES={"default": cache_settings},
        MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
        ROOT_URLCONF=__name__,
        SECRET_KEY="none",
        SESSION_ENGINE="django.contrib.sessions.backends.cache",
    )
    django.setup()
    urlpatterns.append(path("", count_visits))
    from django.core.cache import cache
    from django.test import Client

    cache.set("page", {"title": "x", "words": list(range(1000))}, 100)
    assert cache.get("page")["words"][999] == 999
    assert cache.add("page", 1) is False and cache.add("fresh", 1) is True
    assert cache.get_or_set("made", lambda: "once") == "once"
    cache.set("number", 41)
    assert cache.incr("number") == 42 and cache.decr("number", 2) == 40
    cache.set_many({f"many:{number}": number for number in range(100)}, 100)
    assert cache.get_many(["many:1", "many:99", "none"]) == {"many:1": 1, "many:99": 99}
    cache.delete_many(["many:1", "many:2"])
    assert cache.get("many:1") is None and cache.has_key("many:3")
    cache.set("short", 1, 1)
    assert cache.touch("short", 100) and not cache.touch("none", 100)
    cache.set("number", 1, version=2)
    assert cache.get("number") == 40 and cache.get("number", version=2) == 1
    browsers = [Client(), Client()]
    visits = [int(browser.get("/").content) for browser in browsers * 5]
    assert visits == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    cache.clear()
    assert cache.get("page") is None
    assert int(browsers[0].get("/").content) == 1, "the session went with the cache"
    assert client.dbsize() > 0, "another database was emptied as well"


def locks_exclude_and_expire(client):
    processes = [subprocess.Popen([sys.executable, HERE / "tasks.py"]) for _ in range(3)]
    assert [process.wait(PATIENCE) for process in processes] == [0, 0, 0]
    assert client.get("counted") == b"225"
    lock, other = client.lock("door", timeout=0.2), client.lock("door", blocking_timeout=5)
    assert lock.acquire() and lock.owned()
    assert not client.lock("door").acquire(blocking=False)
    lock.extend(0.1)
    assert other.acquire(), "an expired lock is free"
    try:
        lock.release()
        raise AssertionError("somebody else's lock was released")
    except redis.exceptions.LockError:
        pass
    assert other.owned()
    other.release()
    assert client.get("door") is None


def main():
    client = redis.Redis(port=PORT, protocol=PROTOCOL, socket_timeout=10)
    client.flushall()
    celery_works_off_tasks(client)
    rq_works_off_jobs(client)
    django_keeps_its_cache_and_sessions(client)
    locks_exclude_and_expire(client)


if __name__ == "__main__":
    main()
