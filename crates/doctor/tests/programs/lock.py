"""A line server that sleeps 50 ms in each request, under a lock.

Known cause: the lock, which all connections share. A second argument "each" gives each connection a lock of
its own: that is the case without the cause.
"""
import socket
import sys
import threading
import time

SHARED = threading.Lock()


def answer(lock, line):
    with lock:
        time.sleep(0.05)
    return line


def serve(connection, lock):
    with connection, connection.makefile("rwb") as file:
        for line in file:
            file.write(answer(lock, line))
            file.flush()


def main():
    each = sys.argv[2:] == ["each"]
    with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
        print("listening", listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            lock = threading.Lock() if each else SHARED
            threading.Thread(target=serve, args=(connection, lock), daemon=True).start()


main()
