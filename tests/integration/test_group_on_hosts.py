"""One group over two hosts: cells, arrays, interrupts, deaths, recoveries, saved variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.fixtures import CLEAR, LostVariablesError, WrongNumbersError, until
from support.hosts import Hosts
from support.remote import Program, RaisedError

pytestmark = pytest.mark.may_be_skipped

START = "session = jaxnb.start(4, hosts='hostA,hostB', platform='cpu')"

CELL = """
import socket, time
mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
def laid_out(array, *axes):
    return jax.make_array_from_callback(
        array.shape, NamedSharding(mesh, P(*axes)), lambda index: array[index])
x = laid_out(np.arange(12, dtype=np.float32), "d")
everywhere = laid_out(np.arange(5, dtype=np.float32))
total = jax.jit(jnp.sum)
mine, plain = process_index, "plain"
float(total(x))
"""

HELD = """
assert float(total(everywhere)) == 10 and plain == "plain"
assert float(total(x)) == 66 if {whole} else "not carried over" in repr(x)
"""


class Group:
    """A group, in a program on hostA.

    Attributes:
        hosts: Both hosts.
        program: See above.
    """

    def __init__(self, hosts: Hosts) -> None:
        self.hosts, self.program = hosts, Program(hosts.a)
        self.do(START)

    def do(self, code: str) -> Any:
        """Runs code beside the session; see :meth:`~support.remote.Program.do`."""
        return self.program.do(code)

    def cell(self, code: str, *, options: str = "") -> Any:
        """Runs a cell; returns its value."""
        return self.do(f"session.run({code!r}, {options}).value")

    def pid(self, index: int) -> int:
        """Returns the id of a process on its host."""
        found: int = self.do(f"session.processes[{index}].pid")
        return found

    def signal(self, index: int, sig: str) -> None:
        """Sends a process a signal, on its host."""
        host = self.hosts.a if index < 2 else self.hosts.b
        host.run("kill", f"-{sig}", str(self.pid(index)))

    def kill(self, index: int) -> None:
        """Kills a process, and waits until that is known."""
        self.signal(index, "KILL")
        until(lambda: self.do("session.state") == "broken", "the death was known")

    def require_usable(self) -> None:
        """Fails unless all processes compute, each on its host."""
        places = self.do("[(each.host, each.state) for each in session.processes]")
        assert places == [["hostA", "ready"]] * 2 + [["hostB", "ready"]] * 2
        if self.cell(CELL) != 66:
            raise WrongNumbersError(self.cell("float(total(x))"))


@pytest.fixture(scope="module")
def whole(shared_hosts: Hosts) -> Iterator[Group]:
    """One group for the tests of this file."""
    group = Group(shared_hosts)
    yield group
    group.program.close()
    until(lambda: not shared_hosts.left(), f"nothing is left: {shared_hosts.left()}")


@pytest.fixture
def group(whole: Group) -> Iterator[Group]:
    """It, with the variables of :data:`CELL` only."""
    whole.cell(CLEAR)
    whole.cell(CELL)
    whole.do("said.clear()")
    yield whole
    whole.require_usable()


def test_output_is_merged_by_what_processes_wrote(group: Group) -> None:
    group.do("result = session.run('print(1)\\nprint(socket.gethostname())')")
    written = group.do("{i: each.stdout for i, each in result.per_process.items()}")
    assert [*written.values()] == ["1\nhostA\n"] * 2 + ["1\nhostB\n"] * 2
    assert group.do("sorted(session.run('1', ranks=[1, 3]).per_process)") == [1, 3]
    assert group.do("[each.host for each in session.stats()]") == ["hostA"] * 2 + ["hostB"] * 2
    assert group.do("sorted(session.where())") == [0, 1, 2, 3]
    assert "clocks of 2 hosts were aligned" in group.do("str(session.timeline())")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "for i in range(9):\n    if mine == 3 and i == 5: typo\n    total(x)",
            r"process 3 raised NameError.*processes 0-2 raised DivergenceError.*dispatch 6",
        ),
        (
            "for i in range(9 + (mine == 2)): total(x)",
            r"process 2 raised DivergenceError.*processes 0-1,3: had finished",
        ),
        ("if mine == 3: raise ValueError", "CellError: process 3 raised ValueError"),
    ],
)
def test_who_differs_is_told_at_once(group: Group, code: str, said: str) -> None:
    with pytest.raises(RaisedError, match=said):
        group.cell(code)


def test_an_interrupt_ends_a_loop_at_one_dispatch_on_all_hosts(group: Group) -> None:
    group.program.begin(
        "import threading\npress = threading.Timer(0.3, session.interrupt)\npress.start()\n"
        "session.run('n = 0\\nwhile True:\\n    n += 1\\n    y = total(x)', sink=Says())"
    )
    with pytest.raises(RaisedError, match="processes 0-3 raised KeyboardInterrupt"):
        group.program.end()
    assert "Stopped cleanly: none of processes 0-3" in group.do("said[-1]")
    assert len({*group.do("[n.stdout for n in session.run('print(n)').per_process.values()]")}) == 1


@pytest.mark.parametrize("sleeper", [1, 3])
def test_an_interrupt_reaches_who_sleeps_on_each_host(group: Group, sleeper: int) -> None:
    group.program.begin(
        "press = threading.Timer(0.3, session.interrupt)\npress.start()\n"
        f"session.run('if mine == {sleeper}: time.sleep(1000)\\nfloat(total(x))')"
    )
    with pytest.raises(RaisedError, match=f"process {sleeper} raised KeyboardInterrupt at line 1"):
        group.program.end()


def test_arrays_of_all_hosts_are_pulled_and_values_pushed(group: Group) -> None:
    group.do("big = np.arange(1 << 20, dtype=np.float32)\nsession.push(big=big)")
    group.cell("spread = laid_out(np.arange(1 << 20, dtype=np.float32), 'd')")
    for name in ("big", "spread"):
        if not group.do(f"bool((np.asarray(session.pull({name!r})) == big).all())"):
            raise WrongNumbersError(name)
    group.cell("del big, spread")


def test_who_is_stopped_on_another_host_is_continued_over_ssh(group: Group) -> None:
    for index, command in (
        (3, f"ssh hostB kill -CONT {group.pid(3)}"),
        (1, f"kill -CONT {group.pid(1)}"),
    ):
        group.signal(index, "STOP")
        detail = group.do(f"session.processes[{index}].detail")
        assert detail == f"stopped, `{command}` lets it go on"
        group.signal(index, "CONT")


def test_new_processes_take_over_what_those_of_their_host_had(group: Group) -> None:
    assert group.do("session.recover().lost") == []
    group.cell(HELD.format(whole=True) + "assert mine == process_index")


@pytest.mark.parametrize("dead", [3, 0])
def test_who_takes_the_place_of_a_dead_one_reads_what_other_hosts_had(
    group: Group, dead: int
) -> None:
    host, pid = "hostA" if dead == 0 else "hostB", group.pid(dead)
    group.kill(dead)
    with pytest.raises(RaisedError, match=rf"Process {dead} of 4 \(pid {pid} on {host}\) was kil"):
        group.cell("1")
    lost = group.do("sorted(each.path for each in session.recover().lost)")
    if {*lost} != {"mine", "x"}:
        raise LostVariablesError(lost)
    group.cell(HELD.format(whole=False))


@pytest.mark.thorough
def test_who_takes_the_place_of_a_dead_one_imports_from_where_the_user_has_said(
    group: Group,
) -> None:
    """The hosts of the tests do not import from the same places anyway."""
    folder = group.hosts.shared / "modules"
    folder.mkdir()
    (folder / "of_the_user.py").write_text("class Held: value = 7\n")
    code = f"import sys; sys.path.append({str(folder)!r}); import of_the_user"
    group.cell(f"{code}\nheld = of_the_user.Held()")
    group.kill(3)
    lost = group.do("sorted(each.path for each in session.recover().lost)")
    if {*lost} != {"mine", "x"} or group.cell("held.value") != 7:
        raise LostVariablesError(lost)


def test_groups_of_other_sizes_take_over_what_all_hosts_had(group: Group) -> None:
    for size, places in ((6, ["hostA"] * 3 + ["hostB"] * 3), (2, ["hostA", "hostB"])):
        assert group.do(f"session.recover(num_processes={size}).lost") == []
        assert group.do("[each.host for each in session.processes]") == places
        group.cell(HELD.format(whole=True))
    with pytest.raises(RaisedError, match=r"dimension 0 \(12\)\. Nothing has changed"):
        group.do("session.recover(num_processes=5)")
    group.cell(HELD.format(whole=True))
    group.do("session.restart(num_processes=4)")


def test_variables_are_saved_where_all_hosts_can_write(group: Group) -> None:
    shared = str(group.hosts.shared / "state")
    group.do(f"session.save({shared!r}, ['x', 'mine', 'everywhere'])")
    with pytest.raises(RaisedError, match=r"Processes 2-3 could not write to /tmp .*the hosts sh"):
        group.do("session.save('/tmp/state')")
    group.cell("del x, mine, everywhere")
    group.do(f"session.load({shared!r})")
    group.cell(HELD.format(whole=True) + "assert mine == process_index")
