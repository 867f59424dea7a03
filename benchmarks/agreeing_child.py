"""Parts of the group that agrees on words and does nothing else.

``python -m benchmarks.agreeing_child conductor PATH COUNT`` serves until its input ends;
``… process PATH COUNT INDEX ROUNDS`` prints the seconds of a round; ``… echo ROUNDS`` those of a
message to another process and back, over the same kind of socket.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from jaxnb.lockstep.conductor_loop import Loop
from jaxnb.lockstep.connections import listening
from jaxnb.lockstep.messages import Word
from jaxnb.lockstep.process_connection import Line

WARM_UP = 200
MESSAGE = b"m" * 60
"""About as long as a word."""


def conductor(path: str, count: str) -> None:
    """Serves until standard input ends."""
    loop = Loop(listening(Path(path), None), int(count), lambda pid: None)
    threading.Thread(target=lambda: (sys.stdin.read(), loop.stop()), daemon=True).start()
    print("ready", flush=True)
    loop.run()


def process(path: str, count: str, index: str, rounds: str) -> None:
    """Says the same word as all others, over and over."""
    line = Line(Path(path), int(index), int(count))
    everyone = tuple(range(int(count)))
    line.begin(1, everyone)
    word = Word(everyone, b"p" * 16, b"i" * 16, 1)
    print(_seconds(lambda: line.ask(word), int(rounds)))


def echo(rounds: str) -> None:
    """Sends a message to another process, which sends it back, over and over."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if not child:
        mine.close()
        while message := its.recv(len(MESSAGE)):
            its.send(message)
        os._exit(0)
    its.close()

    def there_and_back() -> None:
        mine.send(MESSAGE)
        mine.recv(len(MESSAGE))

    print(_seconds(there_and_back, int(rounds)))
    mine.close()
    os.waitpid(child, 0)


def _seconds(call: Callable[[], object], rounds: int) -> float:
    for _ in range(WARM_UP):
        call()
    begin = time.perf_counter()
    for _ in range(rounds):
        call()
    return (time.perf_counter() - begin) / rounds


if __name__ == "__main__":
    {"conductor": conductor, "process": process, "echo": echo}[sys.argv[1]](*sys.argv[2:])
