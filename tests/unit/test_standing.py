"""Since when processes stand where they stand, from looks at them."""

from __future__ import annotations

from dataclasses import replace

from jaxnb.model.group import StackEntry, Whereabouts
from jaxnb.session.standing_since import Standing

LINE = StackEntry("<cell 7>", 5, "<module>", "float(f(x))", 7)
ELSEWHERE = StackEntry("<cell 7>", 3, "<module>", "time.sleep(1000)", 7)


def stuck(index: int, cpu: float = 1.0) -> Whereabouts:
    return Whereabouts(index, (LINE,), "futex", cpu, None)


def asleep(index: int) -> Whereabouts:
    return Whereabouts(index, (ELSEWHERE,), "sleep", 1.0, None)


def seen(*looks: list[Whereabouts], asked: tuple[int, ...] = (0, 1, 2)) -> Standing:
    """Looks a second apart."""
    found = Standing()
    for second, look in enumerate(looks):
        found.see({where.process_index: where for where in look}, asked, 100.0 + second)
    return found


def test_who_waits_for_the_user_does_not_wait_for_others() -> None:
    asks = StackEntry("/x/jaxnb/debugging/process_questions.py", 80, "Questions.ask", "", None)
    loop = StackEntry("/usr/lib/python3/cmd.py", 134, "Cmd.cmdloop", "", None)
    at_breakpoint = replace(stuck(0), stack=(LINE, loop, asks))
    at_input = replace(stuck(1), stack=(LINE, asks))
    standing = seen([at_breakpoint, at_input], [at_breakpoint, at_input], asked=(0, 1))
    assert [work.doing for work in standing.at_work()] == [
        "at a breakpoint",
        "waiting for an answer to its input()",
    ]


def test_who_waits_for_a_thread_of_its_own_is_told_so() -> None:
    turn = StackEntry("/x/jaxnb/lockstep/process_turns.py", 40, "Turns.begin", "", None)
    lock = StackEntry("/usr/lib/python3/threading.py", 355, "Condition.wait", "", None)
    waits = replace(stuck(0), stack=(LINE, turn, lock))
    (work,) = seen([waits], [waits], asked=(0,)).at_work()
    assert work.doing == "waiting until another of its threads has dispatched"


def test_all_wait_since_the_last_of_them_does() -> None:
    standing = seen(
        [stuck(0), stuck(1), asleep(2)],
        [stuck(0), stuck(1), stuck(2)],
        [stuck(0), stuck(1), stuck(2)],
    )
    assert [standing.still_seconds(i) for i in range(3)] == [2, 2, 1]
    assert standing.all_still_seconds() == 1
    assert standing.at_work() == ()


def test_who_works_is_told_with_what_it_does() -> None:
    standing = seen(*[[stuck(0), stuck(1), asleep(2)]] * 4)
    assert standing.all_still_seconds() == 0
    assert standing.waiters(3) == [0, 1]
    (work,) = standing.at_work()
    assert (work.processes, work.place, work.doing, work.seconds) == ((2,), ELSEWHERE, "asleep", 3)


def test_what_is_seen_of_work() -> None:
    inner = StackEntry("/jax/_src/compiler.py", 9, "backend_compile", "", None)
    computes = [Whereabouts(0, (LINE,), "", cpu, None) for cpu in (1.0, 1.9)]
    compiles = replace(computes[0], process_index=1, stack=(LINE, inner))
    in_c = Whereabouts(2, (LINE, StackEntry("/u/lib.py", 3, "call", "", None)), "futex", 1.0, None)
    standing = seen([computes[0], compiles, in_c], [computes[1], compiles, in_c])
    assert [each.doing for each in standing.at_work()] == [
        "computing",
        "compiling",
        "waiting in C code",
    ]


def test_who_computes_does_not_stand() -> None:
    standing = seen([stuck(0)], [stuck(0, cpu=1.5)], asked=(0,))
    assert standing.still_seconds(0) == 0
    assert standing.all_still_seconds() == 0


def test_the_silent_count_from_when_they_fell_silent() -> None:
    standing = seen([stuck(0), stuck(1), stuck(2)], [stuck(0), stuck(1)], [stuck(0), stuck(1)])
    assert standing.silent == {2}
    assert standing.all_still_seconds() == 1
    nobody = seen([], [], [])
    assert (nobody.silent, nobody.all_still_seconds()) == ({0, 1, 2}, 2)


def test_who_waits_while_other_threads_compute_is_seen() -> None:
    standing = seen(*[[stuck(0, cpu=1.0 + i), asleep(1)] for i in range(4)], asked=(0, 1))
    assert standing.waiters(3) == [0]
    assert [each.processes for each in standing.at_work()] == [(1,)]
    assert standing.all_still_seconds() == 0
