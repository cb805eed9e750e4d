"""What a stranger can do to a server of idl/demo.thrift, and what it costs the server.

Usage: stranger.py PORT PID plain|zlib. Runs each attack, while a well-behaved client calls `echo`; prints
the most memory that the server had, how its descriptors and memory end, and the longest call of that
client. Fails if the memory passes its bound, a descriptor stays, or a call of the client fails.
"""

import os
import socket
import struct
import sys
import threading
import time
import zlib

PORT, PID, STAGE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
# 256 MiB for calls and answers; 64 KiB, and 200 KiB to compress, for each of 400 connections; and a little.
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
    stranger = socket.create_connection(("127.0.0.1", PORT))
    stranger.setblocking(False)
    return stranger


def deflate(data):
    if STAGE == "plain":
        return data
    stream = zlib.compressobj(9)
    return stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH)


def send(strangers, data):
    """Sends as much of it as the server takes: until no more is taken for a second."""
    left = {stranger: memoryview(data) for stranger in strangers}
    quiet = time.monotonic()
    while left and time.monotonic() < quiet + 1:
        for stranger, rest in list(left.items()):
            try:
                left[stranger] = rest[stranger.send(rest[: 1 << 20]):]
                quiet = time.monotonic()
            except BlockingIOError:
                time.sleep(0.001)
            except OSError:
                left.pop(stranger)
                continue
            if not left.get(stranger):
                left.pop(stranger, None)


def reset(strangers):
    for stranger in strangers:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.close()


def idle():
    strangers = [connect() for _ in range(400)]
    send(strangers, deflate(call(b"echo", b"x" * 1000)))
    time.sleep(1)
    reset(strangers)


def long_calls():
    strangers = [connect() for _ in range(20)]
    send(strangers, deflate(call(b"later", b"x" * 1_000_000, 60_000) * 240))
    reset(strangers)


def short_calls():
    strangers = [connect() for _ in range(200)]
    send(strangers, deflate(call(b"later", b"", 60_000) * 5000))
    reset(strangers)


def unread_answers():
    strangers = [connect() for _ in range(20)]
    send(strangers, deflate(call(b"echo", b"x" * 1_000_000) * 240))
    send(strangers, deflate(call(b"echo", b"x" * 100) * 5000))
    reset(strangers)


def halves():
    strangers = [connect() for _ in range(200)]
    half = call(b"echo", b"x" * 15_000_000)[:8_000_000]
    send(strangers, deflate(half))
    reset(strangers)


def resets():
    for _ in range(10):
        strangers = [connect() for _ in range(200)]
        send(strangers, deflate(call(b"later", b"never", 60_000)))
        reset(strangers)


def garbage():
    for _ in range(500):
        stranger = connect()
        send([stranger], os.urandom(100))
        stranger.close()


def kept(attack, running):
    """The longest of many calls of a client that reads and closes."""
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
                    raise EOFError("the server closed the connection of a good client")
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
            peak.write("5")  # VmHWM begins anew
        attacking, running = threading.Thread(target=attack), []
        attacking.start()
        try:
            kept(attacking, running)
        except (OSError, EOFError, ValueError) as error:
            print(f"{attack.__name__}: a good client failed: {error!r}", file=sys.stderr)
        attacking.join()
        end = time.monotonic() + 10
        while descriptors() > before and time.monotonic() < end:
            time.sleep(0.05)
        most, left = memory("VmHWM"), descriptors() - before
        print(f"  {attack.__name__:15} at most {most >> 20:4} MiB, {memory('VmRSS') >> 20:4} MiB after it, "
              f"{left} descriptors stay, longest call {1000 * max(running, default=0):.0f} ms")
        failed |= most > BOUND or left > 0 or not running
    print("withstood" if not failed else "not withstood")
    sys.exit(failed)


main()
