"""The client of Apache Thrift's Python package against a server of idl/demo.thrift.

Usage: client.py PORT binary|compact plain|zlib. Makes calls one by one on several connections, then sends
many calls on one connection before it reads the first answer. Prints the numbers of expected, answered,
mismatched and lost calls, and how many answers overtook another.
"""

import math
import sys
import threading
import time
from collections import Counter

from demo import Demo, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.Thrift import TApplicationException, TException, TMessageType
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TFramedTransport
from thrift.transport.TZlibTransport import TZlibTransport

PORT, PROTOCOL, STAGE = int(sys.argv[1]), sys.argv[2], sys.argv[3]
CONNECTIONS, ROUNDS, AT_ONCE = 8, 25, 200

totals = Counter(expected=0, answered=0, mismatched=0)
lock = threading.Lock()


def check(what, answer, expected):
    with lock:
        totals["answered"] += 1
        if answer != expected:
            totals["mismatched"] += 1
            print(f"mismatched: {what}: {answer!r}, not {expected!r}", file=sys.stderr)


def expect(calls):
    with lock:
        totals["expected"] += calls


def connect():
    socket = TSocket("127.0.0.1", PORT)
    socket.setTimeout(30_000)
    transport = TFramedTransport(TZlibTransport(socket) if STAGE == "zlib" else socket)
    protocol = {"binary": TBinaryProtocol, "compact": TCompactProtocol}[PROTOCOL](transport)
    transport.open()
    return transport, protocol, Demo.Client(protocol)


def value(number):
    return ttypes.OneOfEach(
        True, False, 127, 27_000, 1 << 24, number, math.pi, 'JSON THIS! "\x01', "\u00d7\n\a\t", False,
        bytes(range(256)), [1, 2, -3], [1, 2, -3], [1, 2, number])


def survive(call, *args):
    """Makes calls, and returns 0 if one fails. Unanswered calls are counted as lost."""
    try:
        return call(*args)
    except (TException, OSError, EOFError) as error:
        print(f"lost: {error!r}", file=sys.stderr)
        return 0


def one_by_one(me):
    expect(8 * ROUNDS)
    transport, _, client = connect()
    for n in range(me * ROUNDS, (me + 1) * ROUNDS):
        check("ping", client.ping(), None)
        check("add", client.add(n, -1), n - 1)
        check("echo", client.echo(f"text {n} \u00d7"), f"text {n} \u00d7")
        check("each", client.each(value(n)), value(n))
        check("sum", client.sum([n] * 300), 300 * n)
        check("count", client.count(["a", "b", "a"]), {"a": 2, "b": 1})
        try:
            check("count of the empty word", client.count(["a", ""]), "an exception")
        except ttypes.Forbidden as forbidden:
            check("forbidden", forbidden.word, "")
        try:
            check("add beyond 64 bits", client.add(2**63 - 1, 1), "an exception")
        except TApplicationException as error:
            check("refused", error.type, TApplicationException.INTERNAL_ERROR)
        client.note("not answered")
    transport.close()


def at_once():
    """Each call has a shorter delay than the call before it, so its answer overtakes."""
    expect(AT_ONCE)
    transport, protocol, client = connect()
    for n in range(AT_ONCE):
        client._seqid = n
        client.send_later(f"call {n}", 2 * (AT_ONCE - n))
    seen, overtaken = set(), 0
    for _ in range(AT_ONCE):
        name, kind, n = protocol.readMessageBegin()
        result = Demo.later_result()
        result.read(protocol)
        protocol.readMessageEnd()
        overtaken += any(n < other for other in seen)
        check("kind", (name, kind, n in seen, result.success),
              ("later", TMessageType.REPLY, False, f"call {n}"))
        seen.add(n)
    transport.close()
    return overtaken


def notes():
    expect(1)
    transport, _, client = connect()
    deadline = time.monotonic() + 10  # the last notes may be on their way, since they are not answered
    while (left := client.notes()) < CONNECTIONS * ROUNDS and time.monotonic() < deadline:
        time.sleep(0.01)
    check("notes", left, CONNECTIONS * ROUNDS)
    transport.close()


def main():
    threads = [threading.Thread(target=survive, args=(one_by_one, me)) for me in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    overtaken = survive(at_once)
    survive(notes)
    lost = totals["expected"] - totals["answered"]
    print(f"expected {totals['expected']}, answered {totals['answered']}, "
          f"mismatched {totals['mismatched']}, lost {lost}, overtaken {overtaken}")
    if not overtaken:
        sys.exit("no answer overtook another")
    sys.exit(bool(lost or totals["mismatched"]))


main()
