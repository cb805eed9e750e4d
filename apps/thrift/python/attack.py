"""Attacks by untrusted clients on a server of idl/demo.thrift, and the resources that they cost.

Usage: attack.py PORT PID plain|zlib. Runs each attack while a well-behaved client calls `echo`. Prints the
server's peak memory, its memory and open descriptors after the attack, and the longest call of the client.
Fails if the memory exceeds its bound, a descriptor remains open, or a call of the client fails.
"""

import os
import socket
import struct
import sys
import threading
import time
import zlib

PORT, PID, STAGE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
# 256 MiB for calls and answers; 64 KiB, and 200 KiB for compression, for each of 400 connections; a reserve.
BOUND = 384 << 20


def message(name, kind, number, fields):
    body = struct.pack(">II", 0x80010000 | kind, len(name)) + name + struct.pack(">I", number) + fields
    return struct.pack(">I", len(body)) + body


def text(value, millis=None):
    fields = struct.pack(">bhI", 11, 1, len(value)) + value
    if millis is not None:
        fields += struct.pack(">bhi", 8, 2, millis)
    return fields + b"\0"


def call(name, value, millis=None):
    return message(name, 1, 7, text(value, millis))


def connect():
    client = socket.create_connection(("127.0.0.1", PORT))
    client.setblocking(False)
    return client


def deflate(data):
    if STAGE == "plain":
        return data
    stream = zlib.compressobj(9)
    return stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH)


def send(sockets, data):
    """Sends as much of the data as the server reads, until it has read nothing for a second."""
    left = {client: memoryview(data) for client in sockets}
    quiet = time.monotonic()
    while left and time.monotonic() < quiet + 1:
        for client, rest in list(left.items()):
            try:
                left[client] = rest[client.send(rest[: 1 << 20]):]
                quiet = time.monotonic()
            except BlockingIOError:
                time.sleep(0.001)
            except OSError:
                left.pop(client)
                continue
            if not left.get(client):
                left.pop(client, None)


def reset(sockets):
    for client in sockets:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()


def idle():
    sockets = [connect() for _ in range(400)]
    send(sockets, deflate(call(b"echo", b"x" * 1000)))
    time.sleep(1)
    reset(sockets)


def long_calls():
    sockets = [connect() for _ in range(20)]
    send(sockets, deflate(call(b"later", b"x" * 1_000_000, 60_000) * 240))
    reset(sockets)


def short_calls():
    sockets = [connect() for _ in range(200)]
    send(sockets, deflate(call(b"later", b"", 60_000) * 5000))
    reset(sockets)


def unread_answers():
    sockets = [connect() for _ in range(20)]
    send(sockets, deflate(call(b"echo", b"x" * 1_000_000) * 240))
    send(sockets, deflate(call(b"echo", b"x" * 100) * 5000))
    reset(sockets)


def halves():
    sockets = [connect() for _ in range(200)]
    half = call(b"echo", b"x" * 15_000_000)[:8_000_000]
    send(sockets, deflate(half))
    reset(sockets)


def resets():
    for _ in range(10):
        sockets = [connect() for _ in range(200)]
        send(sockets, deflate(call(b"later", b"never", 60_000)))
        reset(sockets)


def garbage():
    for _ in range(500):
        client = connect()
        send([client], os.urandom(100))
        client.close()


def well_behaved(attack, running):
    """Calls `echo` until the attack ends, and appends the time of the longest call to `running`."""
    longest, value = 0, b"well " * 200
    with socket.create_connection(("127.0.0.1", PORT)) as client:
        client.settimeout(60)
        deflating, inflating = zlib.compressobj(), zlib.decompressobj()
        while attack.is_alive() or not longest:
            start, request, answer = time.monotonic(), call(b"echo", value), b""
            if STAGE == "zlib":
                request = deflating.compress(request) + deflating.flush(zlib.Z_SYNC_FLUSH)
            client.sendall(request)
            while len(answer) < 4 or len(answer) < 4 + struct.unpack(">I", answer[:4])[0]:
                part = client.recv(1 << 16)
                if not part:
                    raise EOFError("the server closed the connection of the well-behaved client")
                answer += inflating.decompress(part) if STAGE == "zlib" else part
            if value not in answer:
                raise ValueError(f"an answer without its text: {answer[:100]!r}")
            longest = max(longest, time.monotonic() - start)
            time.sleep(0.01)
    running.append(longest)


def memory(what):
    with open(f"/proc/{PID}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(what))


def descriptors():
    return len(os.listdir(f"/proc/{PID}/fd"))


def main():
    failed, before = False, descriptors()
    for attack in (idle, long_calls, short_calls, unread_answers, halves, resets, garbage):
        with open(f"/proc/{PID}/clear_refs", "w", encoding="ascii") as peak:
            peak.write("5")  # resets VmHWM
        attacking, running = threading.Thread(target=attack), []
        attacking.start()
        try:
            well_behaved(attacking, running)
        except (OSError, EOFError, ValueError) as error:
            print(f"{attack.__name__}: the well-behaved client failed: {error!r}", file=sys.stderr)
        attacking.join()
        end = time.monotonic() + 10
        while descriptors() > before and time.monotonic() < end:
            time.sleep(0.05)
        most, left = memory("VmHWM"), descriptors() - before
        print(f"  {attack.__name__:15} peak {most >> 20:4} MiB, then {memory('VmRSS') >> 20:4} MiB, "
              f"{left} descriptors left open, longest call {1000 * max(running, default=0):.0f} ms")
        failed |= most > BOUND or left > 0 or not running
    print("passed" if not failed else "failed")
    sys.exit(failed)


main()
