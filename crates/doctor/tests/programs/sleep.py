"""A line server whose requests sleep 50 ms.

Known cause: time.sleep in the function `answer`.
"""
import socket
import sys
import threading
import time


def answer(line):
    time.sleep(0.05)
    return line


def serve(connection):
    with connection, connection.makefile("rwb") as file:
        for line in file:
            file.write(answer(line))
            file.flush()


def main():
    with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
        print("listening", listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


main()
