"""Why processes wait, by what the conductor knows."""

from __future__ import annotations

from jaxnb.lockstep.messages import Asking, Lane, Word
from jaxnb.session.reasons import awaited, silent_reason, threads_reason


def asking(
    process: int,
    lane: Lane = "main",
    program: bytes = b"p",
    inputs: bytes = b"",
    token: int = 1,
    among: tuple[int, ...] = (0, 1, 2, 3),
) -> Asking:
    return Asking(process, lane, token, Word(among, program, inputs))


def test_who_is_awaited_may_wait_itself() -> None:
    chain = [asking(0, among=(0, 1)), asking(1, among=(1, 2))]
    assert awaited([0], chain) == {1, 2}
    assert awaited([1], chain) == {2}
    assert awaited([3], chain) == set()
    assert awaited([0, 2, 3], [asking(i) for i in (0, 2, 3)]) == {1}
    assert awaited([0], [asking(0, "other")]) == set()


def test_threads_differ() -> None:
    def reason(*askings: Asking) -> tuple[str, str]:
        found = threads_reason(askings)
        assert found is not None
        return found.text, found.cause

    each = "A thread of each of processes 0-3 (or a computation's callback) waits"
    text, cause = reason(*(asking(i, "other", inputs=b"%d" % (i % 2)) for i in range(4)))
    assert text.startswith(each)
    assert text.endswith("inputs of the one program differ on processes 0,2 / 1,3.")
    assert cause == "input"
    text, cause = reason(*(asking(i, "other", program=b"%d" % i) for i in range(4)))
    assert text.endswith("programs or shapes differ on processes 0 / 1 / 2 / 3.")
    assert cause == "program"
    text, cause = reason(asking(0, "other"), asking(0, "other", b"q", token=2))
    assert text.startswith("A thread of process 0 (")
    assert text.endswith("processes 1-3 have no thread that does.")
    assert cause == "missing"
    # Those that wait since before are not what all wait for now.
    older = [asking(i, "other", program=b"%d" % i, token=0) for i in range(4)]
    text, cause = reason(*(asking(i, "other", inputs=b"%d" % i) for i in range(4)), *older)
    assert cause == "input"
    assert threads_reason([asking(0)]) is None


def test_a_silent_conductor_is_named() -> None:
    assert "conductor (pid 77)" in silent_reason(3.2, 77).text
    assert "not answered for 3 s" in silent_reason(3.2, 77).text
