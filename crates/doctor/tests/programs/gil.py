"""A line server whose requests compute in pure Python.

Known cause: the interpreter lock. With several clients, their threads wait for one another, and the process
stays below one CPU. With one client, no thread waits: that is the case without the cause.
"""
import socket
import sys
import threading


def checksum(line):
    value = 0
    for i in range(20_000):
        value = (value * 31 + i + line[i % len(line)]) & 0xFFFFFFFF
    return value


def serve(connection):
    with connection, connection.makefile("rwb") as file:
        for line in file:
            file.write(b"%d\n" % checksum(line))
            file.flush()


def main():
    with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
        print("listening", listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


main()
