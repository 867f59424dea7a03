"""The magics in a real notebook kernel, driven by nbclient as `jupyter execute` drives it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from support import fixtures
from support.fixtures import own_frames, until
from support.kernels import new_code_cell, notebook_client

HTML = "text/html"

EXACT_LABELS = (
    "import jaxnb.cells.merge_output as m; m.ROW_SECONDS = m.IN_STEP_GRACE_SECONDS = 90.0; "
    "m.StreamMerger.__init__.__kwdefaults__['grace_seconds'] = 90.0; del m"
)
"""Has a line wait for its twins from other processes, however late they come on a busy machine."""


class Cell:
    """An executed cell.

    Attributes:
        node: The cell of the notebook.
        reply: What the kernel answered; its status is what stops "run all".
    """

    def __init__(self, node: Any, reply: Any) -> None:
        self.node = node
        self.reply = reply

    @property
    def text(self) -> str:
        """Streams and the plain text of everything displayed, in order."""
        parts = []
        for output in self.node.outputs:
            if output.output_type == "stream":
                parts.append(output.text)
            elif output.output_type != "error":
                parts.append(output.data.get("text/plain", "") + "\n")
        return "".join(parts)

    @property
    def html(self) -> str:
        """The HTML of everything displayed."""
        return "\n".join(output.get("data", {}).get(HTML, "") for output in self.node.outputs)

    @property
    def failed(self) -> bool:
        """Whether the cell failed, so that no further cell would run."""
        return bool(self.reply["status"] == "error")

    @property
    def error(self) -> Any:
        """The error that the notebook shows."""
        (error,) = [output for output in self.node.outputs if output.output_type == "error"]
        return error


class Notebook:
    """A kernel, and the notebook whose cells it has run."""

    def __init__(self) -> None:
        self.client = notebook_client(
            timeout=90,
            allow_errors=True,
            kernel_name="python3",
            on_cell_executed=self._keep_reply,
        )
        self._reply: Any = None

    def _keep_reply(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        self._reply = execute_reply["content"]

    def run(self, source: str) -> Cell:
        """Runs a cell; it may fail."""
        cells = self.client.nb.cells
        cells.append(new_code_cell(source))
        node = self.client.execute_cell(cells[-1], len(cells) - 1)
        return Cell(node, self._reply)

    def good(self, source: str) -> Cell:
        """Runs a cell that must not fail."""
        cell = self.run(source)
        assert not cell.failed, cell.reply
        return cell

    def bad(self, source: str, error: str = "UsageError") -> str:
        """Runs a cell that must fail; returns the error's message."""
        cell = self.run(source)
        assert cell.failed, cell.text
        assert cell.reply["ename"] == error
        return str(cell.reply["evalue"])


def kernel() -> Iterator[Notebook]:
    notebook = Notebook()
    with notebook.client.setup_kernel(env=dict(os.environ)):
        notebook.good("%load_ext jaxnb")
        notebook.good(EXACT_LABELS)
        yield notebook


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    """A kernel with the extension loaded, and no group before and after each test."""
    yield from kernel()


@pytest.fixture(scope="module")
def nb() -> Iterator[Notebook]:
    """A kernel with a group of 2 processes × 2 devices, which a test must leave usable."""
    for notebook in kernel():
        notebook.started = notebook.good("%spmd_start -n 2 --devices-per-process 2 --platform cpu")  # type: ignore[attr-defined]
        yield notebook


def test_loading_is_light() -> None:
    code = (
        "import sys\nfrom IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\nbefore = set(sys.modules)\n"
        "shell.run_line_magic('load_ext', 'jaxnb')\n"
        "print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    assert "jaxnb" in loaded
    assert loaded & {"jax", "jaxlib", "ipyparallel"} == set()


# ---------------------------------------------------------------------- before and around a start


def test_without_a_group_every_magic_says_what_to_type(notebook: Notebook) -> None:
    for source in (
        "%%spmd\n1",
        "%spmd 1",
        "%spmd_status",
        "%spmd_stats",
        "%spmd_stop",
        "%spmd_restart",
        "%spmd_pull x",
        "%spmd_push x",
        "%spmd_layout x",
    ):
        message = notebook.bad(source)
        assert message.startswith("There is no group of processes.")
        assert "`%spmd_start`" in message
    # What cannot be started says why, and starts nothing.
    before = fixtures.processes_of_tests()
    for line, said in {
        "-n 0": "must be at least 1, not 0. Nothing was started.",
        "-n many": "invalid int value: 'many'",
        "-n 999 --platform gpu": "Nothing was started.",
        "--launcher frok": "Unknown launcher 'frok'. Did you mean 'fork'?",
        "--platform cpus": "Unknown platform 'cpus'. Did you mean 'cpu'?",
        "--collectives glo": "Unknown collectives 'glo'. Did you mean 'gloo'?",
        "--devices-per-process 0": "must be at least 1, not 0. Nothing was started.",
        "--device-per-process 2": "Did you mean '--devices-per-process'?",
        "--timeout -1": "argument --timeout",
        "4": "unknown option '4'. Did you mean `-n 4`?",
        "-np 4": "unknown option '-np'. Did you mean `-n 4`?",
        "--hosts a, b": "A list takes commas without spaces",
    }.items():
        assert said in notebook.bad(f"%spmd_start {line}")
    assert "Did you mean '--keep'?" in notebook.bad("%spmd_restart --kep")
    until(lambda: set(fixtures.processes_of_tests()) <= set(before), "the end of what began")
    assert "Type `%spmd_start`" in notebook.bad("%%spmd\n1")


def test_load_start_run_restart_stop(notebook: Notebook) -> None:
    assert notebook.good("%load_ext jaxnb").text.strip() in (
        "",
        "The jaxnb extension is already loaded. To reload it, use:\n  %reload_ext jaxnb",
    )
    before = set(fixtures.processes_of_tests())
    started = notebook.good("%spmd_start -n 2 --platform cpu --bare")
    assert "2 processes" in started.text
    pids = notebook.good("print([p.pid for p in spmd.processes])").text
    assert "already (ready). Nothing was started. Type `%spmd_stop` first" in notebook.bad(
        "%spmd_start"
    )
    assert notebook.bad("%%spmd\njnp", "CellError").startswith("processes 0-1 raised NameError")
    notebook.good("%spmd kept = 1")
    restarted = notebook.good("%spmd_restart")
    assert "2 processes" in restarted.text
    assert notebook.good("print([p.pid for p in spmd.processes])").text != pids
    assert "False" in notebook.good("%spmd 'kept' in globals()").text
    notebook.good("kept = 'of the notebook'")  # braces are the line's own, but for its options
    assert "1 of 2" in notebook.good("%spmd kept = 1; f'{kept} of {1 + 1}'").text
    assert "{'a': 1}" in notebook.good("%spmd {'a': kept}").text
    # %reload_ext must not lose the group: nobody could stop it any more.
    notebook.good("%reload_ext jaxnb")
    assert "ready" in notebook.good("%spmd_status").text
    stopped = notebook.good("%spmd_stop")
    assert "stopped" in stopped.text.lower()
    assert "{'a': kept}" in notebook.good("%spmd_history").text  # what it ran can be looked at
    until(lambda: set(fixtures.processes_of_tests()) <= before, "the end of the group")
    assert "There is no group" in notebook.bad("%spmd_stop")
    assert "was closed" in notebook.bad("spmd.run('1')", "SessionClosedError")
    # A name of the user's is not overwritten.
    notebook.good("spmd = 'the users own'\n%spmd_start -n 1 --platform cpu")
    assert notebook.good("print(spmd)").text.endswith("the users own\n")
    notebook.good("%spmd_stop")


def test_a_call_of_run_has_the_number_of_the_notebooks_cell(nb: Notebook) -> None:
    """Another number would be that of another cell of the notebook."""
    shown = nb.good("print(spmd.run('1').cell, get_ipython().displayhook.prompt_count)").text
    called, notebook = shown.split()
    assert called == notebook
    failed = nb.bad("x = 1\nspmd.run('1\\n1\\n1/0')", "CellError")
    assert re.search(r"at line 3 \(code that cell \[\d+\] has run\)", failed)


# ---------------------------------------------------------------------- cards and status


def test_start_shows_one_card_in_place_of_the_progress(nb: Notebook) -> None:
    started = nb.started  # type: ignore[attr-defined]
    outputs = started.node.outputs
    assert len(outputs) == 1
    assert outputs[0].output_type == "display_data"
    assert "2 processes" in started.text
    assert "4 devices" in started.text
    assert HTML in outputs[0].data
    for stage in ("launching", "joining", "checking"):
        assert stage not in started.text


def test_help(nb: Notebook) -> None:
    for magic in ("spmd_start", "spmd_restart", "spmd_stats", "spmd"):
        for option in ("--help", "-h"):
            assert f"usage: %{magic}" in nb.good(f"%{magic} {option}").text
        code = " 0 x" if magic == "spmd" else ""  # alone, `--hepl` is Python
        with_near = nb.bad(f"%{magic} --hepl{code}")
        assert "unknown option '--hepl'. Did you mean '--help'?" in with_near
    assert "ready" in nb.good("%spmd_status").text


# ---------------------------------------------------------------------- cells


def test_output_is_merged_and_the_value_is_a_card(nb: Notebook) -> None:
    cell = nb.good("%%spmd\nprint('hello'); print('I am', process_index)\n6 * 7")
    lines = cell.text.splitlines()
    assert lines[0] == "[0-1] hello"
    assert {"[0] I am 0", "[1] I am 1"} <= set(lines)
    assert "42" in cell.text
    assert "42" in cell.html


def test_an_error_fails_the_cell(nb: Notebook) -> None:
    cell = nb.run("%%spmd\nprint('before')\nif process_index == 1:\n    raise ValueError('boom')")
    assert cell.failed
    assert cell.error.ename == "CellError"
    assert re.search(
        r"process 1 raised ValueError: boom at line 4 \(cell \[\d+\]\)", cell.error.evalue
    )
    traceback = "\n".join(cell.error.traceback)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", traceback)
    assert "line 4" in plain
    assert "raise ValueError('boom')" in plain
    assert own_frames(plain) == []
    assert "[0-1] before" in cell.text
    assert "still" in nb.good("%spmd 'still here'").text


def test_an_empty_cell_fails_and_says_so(nb: Notebook) -> None:
    for source in ("%%spmd", "%%spmd\n", "%%spmd --ranks 0\n ", "%spmd", "%spmd --ranks 0"):
        assert "empty" in nb.bad(source)


def test_ranks(nb: Notebook) -> None:
    cell = nb.good("%%spmd --ranks 1\nprint('only', process_index)\nonly = 1")
    assert cell.text.splitlines()[0] == "[1] only 1"
    assert "the group has processes 0 to 1. Nothing was run." in nb.bad("%%spmd --ranks 9\n1")
    assert "write them like 0,2-3" in nb.bad("%%spmd --ranks one\n1")
    assert "Did you mean '--ranks'?" in nb.bad("%%spmd --rank 0\n1")
    assert "Did you mean '--ranks'?" in nb.bad("%spmd --rank 0 x")


def test_out(nb: Notebook) -> None:
    nb.good("%%spmd --out r\nprint('x')\nprocess_index")
    assert nb.good("print(type(r).__name__, dict(r.value), r.stdout, r.num_processes)").text == (
        "CellResult {0: 0, 1: 1} [0-1] x\n 2\n"
    )
    nb.bad("%%spmd --out failed\n1/0", "CellError")
    assert nb.good("print(failed.errors[1])").text == "ZeroDivisionError: division by zero\n"
    assert "'a-b' is not a name" in nb.bad("%%spmd --out a-b\n1")


def test_time_out(nb: Notebook) -> None:
    message = nb.bad("%%spmd --timeout 0.3\nimport time; time.sleep(600)", "CellTimeoutError")
    assert "time-out of 0.3 s" in message
    assert "is not above 0 seconds" in nb.bad("%%spmd --timeout 0\n1")
    assert "ready" in nb.good("%spmd_status").text


def test_one_line(nb: Notebook) -> None:
    nb.good("%spmd x = 5")
    for code, shown in {
        "'a  b' + \"  c\"": "a  b  c",
        "-x + 1": "-4",
        "--ranks 0 -x": "-5",
        "!echo 'two  blanks'": "two  blanks",
        "print(f'{x!r:>5}')": "    5",
        "{'k': {x}}": "{'k': {5}}",
    }.items():
        assert shown in nb.good(f"%spmd {code}").text


def test_one_line_counts_its_lines_as_the_cell_does(nb: Notebook) -> None:
    cell = nb.run("y = 1\nif y:\n    %spmd 1/0")
    assert re.fullmatch(r".*division by zero at line 3 \(cell \[\d+\]\)", cell.error.evalue)


def test_rich_output_streams_and_the_others_is_a_click_away(nb: Notebook) -> None:
    nb.good("%spmd from IPython.display import HTML, Markdown, display, clear_output")
    cell = nb.good(
        "%%spmd\ndisplay(HTML('<b>same</b>')); display(Markdown(f'**mine {process_index}**'))"
    )
    shown = cell.node.outputs
    # The first process's as they are; the footer and what others displayed are cards.
    assert shown[0].data[HTML] == "<b>same</b>"
    assert shown[1].data["text/markdown"] == "**mine 0**"
    assert cell.html.count("<b>same</b>") == 1
    assert cell.html.count("<details>") == 1
    assert "<summary>process 1</summary>" in cell.html
    assert "mine 0" not in cell.html
    same = nb.good("%spmd --ranks 1 display(HTML('<b>alone</b>'))")
    assert same.node.outputs[0].data[HTML] == "<b>alone</b>"
    assert "<details>" not in same.html
    first = nb.good("%spmd --outputs first display(process_index)")
    assert "[1]" not in first.text
    failed = nb.run("%%spmd\ndisplay(process_index)\n1/0")
    assert failed.failed
    assert "<summary>process 1</summary>" in failed.html


def opens_when_published(gate: Any) -> str:
    """Returns code that has rich output open the gate that a cell waits at."""
    return (
        "import os\nfrom jaxnb.magics import sinks\npublish = sinks.publish_display_data\n"
        "def note(*args, **kwargs):\n"
        f"    os.open({str(gate.path)!r}, os.O_RDWR); publish(*args, **kwargs)\n"
        "sinks.publish_display_data = note"
    )


def test_rich_output_comes_while_the_cell_runs(nb: Notebook, gate: Any) -> None:
    nb.good(opens_when_published(gate))
    try:
        cell = nb.good(f"%%spmd --timeout 80\ndisplay('early')\n{gate.wait}")
    finally:
        nb.good("sinks.publish_display_data = publish")
    assert "'early'" in cell.text


def test_updates_go_to_what_they_update(nb: Notebook) -> None:
    nb.good("%spmd from IPython.display import display, clear_output, DisplayHandle")
    cell = nb.good("%%spmd\nh = display('one', display_id=True)\nh.update('two')")
    assert "'two'" in cell.text
    assert "'one'" not in cell.text
    assert len(cell.node.outputs) == 2  # and the footer
    later = nb.good("%spmd h.update('three')")
    assert "'three'" in cell.text
    assert "'three'" not in later.text
    unknown = nb.good("%spmd DisplayHandle('of nothing known').update('four')")
    assert "'four'" in unknown.text


def test_clear_output_clears_the_cell(nb: Notebook) -> None:
    nb.good("%spmd import time; from IPython.display import display, clear_output")
    cell = nb.good(
        "%%spmd\nfor i in range(3):\n"
        "    clear_output(wait=True); display(f'frame {i} of {process_index}')\n"
        "clear_output(wait=True)"
    )
    # The last one stays: nothing of the user's comes after it.
    assert [line for line in cell.text.splitlines() if "frame" in line] == [
        "'frame 2 of 0'",
        "[1] 'frame 2 of 1'",
    ]
    cell = nb.good("%%spmd\ndisplay('old'); clear_output(); display('new')")
    assert "old" not in cell.text
    assert "'new'" in cell.text
    others = nb.good("%%spmd\ndisplay('kept')\nif process_index == 1: clear_output()")
    assert "'kept'" in others.text


def test_more_lines_than_one_can_read(nb: Notebook) -> None:
    text = nb.good("%spmd --ranks 0 for i in range(12_000): print(i)").text
    # On a busy machine a line may come in two parts: its first one is shown in a place of its own,
    # which is empty in the end.
    lines = [line for line in text.splitlines() if line]
    assert lines[1_000] == "… more lines follow; the last 1 000 are shown at the end"
    assert lines[1_001].startswith("… 10 000 lines not shown, `spmd.results[")
    assert lines[2_001] == "[0] 11999"
    nb.good("%spmd 1")  # the next cell takes nothing of it
    pointer = lines[1_001].split("`")[1]
    assert nb.good(f"print(len({pointer}.splitlines()))").text == "12000\n"


def test_a_page_is_shown_without_a_network(nb: Notebook) -> None:
    shown = nb.good("%spmd_help recompiled").node.outputs[0].data
    assert "**Why.** XLA compiles programs for fixed shapes" in shown["text/markdown"]
    listed = nb.good("%spmd_help").node.outputs[0].data
    assert "`%spmd_help recompiled`" in listed["text/markdown"]
    assert "Did you mean 'settings'?" in nb.bad("%spmd_help setings")
    assert "`%spmd_help collective`" in nb.bad("%spmd_help psum")
    hang = nb.good("%spmd_help Hang").node.outputs[0].data["text/markdown"]
    assert "Processes are about to run different computations" in hang


def test_that_the_notebook_reloads_modules_is_told_once(nb: Notebook) -> None:
    nb.good("%load_ext autoreload\n%autoreload 2")
    assert "`%spmd %autoreload 2`" in nb.good("%%spmd\n1").text
    assert "autoreload" not in nb.good("%%spmd\n1").text
    nb.good("%autoreload 0")


def test_devices_that_a_cell_asks_for_are_asked_for_at_the_start(nb: Notebook) -> None:
    asked = nb.run("%%spmd\njax.config.update('jax_num_cpu_devices', 8)")
    assert "`%spmd_start --devices-per-process N`" in asked.text
    flag = "import os\nos.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'"
    said = nb.good(f"%%spmd\n{flag}").text
    assert "then `%spmd_start --devices-per-process N`" in " ".join(said.split())
    nb.good("%spmd del os.environ['XLA_FLAGS']")
    assert "`spmd` is the session in the notebook" in nb.run("%%spmd\nspmd.state").text


def test_a_comment_may_follow_the_options(nb: Notebook) -> None:
    assert "[0] 0" in nb.good("%%spmd --ranks 0  # the first's only\nprint(process_index)").text
    assert "ready" in nb.good("%spmd_status  # who is there?").text


def test_background_cell_fills_in_its_card(nb: Notebook, gate: Any) -> None:
    cell = nb.good(
        f"%%spmd --async --out handle\nprint('begins')\n{gate.wait}\nprint('ends')\n"
        "'the ' + 'value'"
    )
    assert len(cell.node.outputs) == 1
    assert "in the background" in cell.text
    assert "the value" not in cell.text
    assert nb.good("print(handle.done(), handle)").text.startswith("False <jaxnb background cell")
    assert "still running after 0.01 s" in nb.bad("handle.result(timeout=0.01)", "TimeoutError")
    status = nb.good("%spmd_status").text
    assert "busy" in status
    assert f"[{cell.node.execution_count}] is running" in status
    # Opened by the cell that waits: nbclient drops updates that come while it runs no cell.
    opened = f"import os; opened = os.open({str(gate.path)!r}, os.O_RDWR)\n"
    nb.good(f"%%capture\n{opened}\nfound = handle.result().value")
    assert nb.good("print(found, handle.done())").text == "the value True\n"
    # The same output, updated in place.
    assert len(cell.node.outputs) == 1
    assert "the value" in cell.text
    assert "[0-1] begins" in cell.text
    assert "[0-1] ends" in cell.text
    assert "in the background" not in cell.text
    assert "the value" in cell.html


def test_a_background_cell_is_interrupted_for_itself_only(nb: Notebook, gate: Any) -> None:
    nb.good(f"%%spmd --async --out running\n{gate.wait}\n'went on'")
    waiting = nb.good("%%spmd --async --out waiting\nnever = 1")
    said = nb.bad("waiting.interrupt(); waiting.result(timeout=80)", "UsageError")
    assert "nothing was run" in said
    assert "nothing was run" in waiting.text
    assert nb.good("print(running.done())").text == "False\n"
    gate.open()
    assert nb.good("print(running.result(timeout=80).value)").text == "went on\n"
    nb.good("running.interrupt()")  # it has ended: nothing happens, to no other cell either
    assert "No cell runs" in nb.good("%spmd_interrupt").text
    assert "False" in nb.good("%spmd 'never' in globals()").text


def test_pitfalls_stand_under_the_cell_once(nb: Notebook) -> None:
    loop = "%%spmd --ranks 1\nf = jax.jit(lambda a: a * 3)\nfor i in range(8): f(np.ones(i + 1))"
    shown = nb.good(loop)
    assert "⚠ line 3: `for i in range(8): f(np.ones(i + 1))`\n  `<lambda>` needed 8" in shown.text
    assert "`%spmd_help recompiled`" in shown.text
    assert "<b>line 3: <code>for i in range(8)" in shown.html
    assert "⚠" not in nb.good(loop).text
