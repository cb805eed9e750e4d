"""The non-blocking server of Apache Thrift's Python package, with the service of idl/demo.thrift.

Usage: server.py binary|compact. Prints its port; exits when its standard input is closed.
"""

import os
import sys
import threading
import time
from collections import Counter

from demo import Demo, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocolFactory
from thrift.protocol.TCompactProtocol import TCompactProtocolFactory
from thrift.server.TNonblockingServer import TNonblockingServer
from thrift.transport.TSocket import TServerSocket


class Service:
    def __init__(self):
        self.count_of_notes = 0

    def ping(self):
        pass

    def add(self, left, right):
        return left + right

    def echo(self, text):
        return text

    def later(self, text, millis):
        time.sleep(millis / 1000)
        return text

    def each(self, value):
        return value

    def sum(self, values):
        return sum(values)

    def count(self, words):
        if "" in words:
            raise ttypes.Forbidden("")
        return Counter(words)

    def note(self, text):
        self.count_of_notes += 1

    def notes(self):
        return self.count_of_notes


def main():
    factory = {"binary": TBinaryProtocolFactory, "compact": TCompactProtocolFactory}[sys.argv[1]]()
    socket = TServerSocket("127.0.0.1", 0)
    server = TNonblockingServer(Demo.Processor(Service()), socket, factory)
    server.prepare()
    print(socket.handle.getsockname()[1], flush=True)
    threading.Thread(target=server.serve, daemon=True).start()
    sys.stdin.read()
    os._exit(0)  # its worker threads never end


main()
