"""The program of a scratch process: reads a plan from standard input, answers, and ends."""

from __future__ import annotations

import os
import pickle
import sys
import threading

from jaxnb.launch.lifeline import end_with_parent
from jaxnb.model.compiled import PlanRequest


def main() -> None:
    """Answers one plan.

    Ends with its owner: it watches its owner's process, and its standard input, which its
    owner keeps open.
    """
    end_with_parent(int(sys.argv[1]))
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is not the answer
    request: PlanRequest = pickle.load(sys.stdin.buffer)
    threading.Thread(
        target=_end_with, args=[os.dup(0)], name="jaxnb-scratch-input", daemon=True
    ).start()
    sys.stdin = open(os.devnull)  # noqa: SIM115  # input() ends at once, and `exit()` closes it
    from jaxnb.compiled import process_planned

    reply = process_planned.answer(request)
    with answer:
        answer.write(pickle.dumps(reply))
    os._exit(0)  # XLA's own end takes longer than all of this


def _end_with(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
