"""Agents on two hosts: over ssh, whatever happens to the notebook or to the connection."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fixtures import until
from support.hosts import ROOT, Host, Hosts

pytestmark = pytest.mark.may_be_skipped

NOTEBOOK = """
import json, os, signal, sys, threading
from dataclasses import asdict
from jaxnb.errors import JaxnbError
from jaxnb.launch.hosts import Agents
from jaxnb.model.cells import JoinRequest

def ask(op, **arguments):
    return agents.request(op, **arguments).result(90)

def start_engines(*counts):
    agents.place(counts)
    n = sum(counts)
    connection = json.loads(ask("controller", cluster_id="x")["line"])["engine"]
    address = ask("service", num_processes=n)["line"].strip()
    starts = [{"connection_info": json.dumps(connection), "environment": {**os.environ, "HERE": ""},
               "identity": str(i), "directory": os.getcwd(),
               "join": asdict(JoinRequest(i, n, address, "cpu", 1, arguments=[""],
                                          socket_folder=agents.directory))}
              for i in range(n)]
    return ask("engines", starts=starts)["pids"]

def note(event):
    events.append(event)
    has_come.set()

def wait_for(kind):
    while not any(event["event"] == kind for event in events):
        has_come.wait()
        has_come.clear()
    return events

events, has_come = [], threading.Event()
settings = json.loads(sys.argv[1])
try:
    agents = Agents(settings.pop("hosts"), note, **settings)
    try:
        agents.gather(lambda *_: None)
    except BaseException:
        agents.close()
        raise
except JaxnbError as error:
    sys.exit(f"{type(error).__name__}: {error}")
print(json.dumps(agents.request("facts", gpus=False).result(60)["facts"]), flush=True)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""

PYTHON = str(ROOT / ".venv/bin/python")


class Notebook:
    """A program on hostA that has agents.

    Attributes:
        facts: What they have reported.
    """

    def __init__(self, host: Host, names: list[str], launcher: str, **settings: Any) -> None:
        self._host = host
        asked = json.dumps({"hosts": names, "launcher": launcher, **settings.pop("asked", {})})
        self._program = host.popen(
            PYTHON,
            "-c",
            NOTEBOOK,
            asked,
            **{"folder": str(ROOT), **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts: list[dict[str, Any]] = self._answer()

    def _answer(self) -> Any:
        assert self._program.stdout is not None
        return json.loads(self._program.stdout.readline())

    def __call__(self, expression: str) -> Any:
        """Returns the value of an expression there."""
        assert self._program.stdin is not None
        self._program.stdin.write(f"{expression}\n")
        self._program.stdin.flush()
        return self._answer()

    def kill(self) -> None:
        """Ends it as the kernel does for want of memory."""
        os.kill(self._host.outer(self._program), signal.SIGKILL)

    def close(self) -> None:
        """Waits for its end."""
        self._program.communicate()


@pytest.fixture
def notebook(hosts: Hosts) -> Iterator[Callable[..., Notebook]]:
    """Starts programs on hostA, which end with the test."""
    started = []

    def start(*names: str, launcher: str = "fork", **settings: Any) -> Notebook:
        started.append(Notebook(hosts.a, list(names), launcher, **settings))
        return started[-1]

    yield start
    for each in started:
        each.close()


Start = Callable[..., Notebook]


def test_the_hosts_share_the_checkout_and_one_folder_only(hosts: Hosts) -> None:
    names = [hosts.a.run(*words, "hostname").stdout for words in ((), ("ssh", "hostB"))]
    assert names == ["hostA\n", "hostB\n"]
    hosts.a.run("touch", "/tmp/of-a", "/dev/shm/of-a", str(hosts.shared / "of-both"))
    assert hosts.a.files() == {"/tmp/of-a", "/dev/shm/of-a"}
    assert not hosts.b.files()
    assert not os.path.exists("/tmp/of-a")
    hosts.b.run("rm", str(hosts.shared / "of-both"))
    hosts.a.run("rm", "/tmp/of-a", "/dev/shm/of-a")
    hosts.cut()
    tried = hosts.a.run("ssh", "-o", "ConnectTimeout=1", "hostB", "true", check=False)
    assert "Connection timed out" in tried.stderr
    hosts.restore()
    hosts.a.run("ssh", "hostB", "true")


@pytest.mark.thorough  # groups on two hosts need all of it
@pytest.mark.parametrize("launcher", ["fork", "local"])
def test_processes_of_another_host_are_commanded_from_here(
    hosts: Hosts, notebook: Start, launcher: str
) -> None:
    here = notebook("hostB", launcher=launcher)
    (facts,) = here.facts
    assert (facts["host"], facts["directory"]) == ("hostB", str(ROOT))
    assert hosts.b.files() == {facts["folder"]}
    assert here("agents.directory") != facts["folder"]
    pids = dict(here("start_engines(2)"))
    assert sorted(pids) == [0, 1]
    look = "dict(ask('look')['looks'])"
    assert len(here(look)) == 2
    here(f"ask('signal', processes=[1], signal={signal.SIGSTOP:d})")
    until(lambda: here(look)["1"][0] == "stopped")
    assert here(look)["0"][0] != "stopped"
    here(f"ask('signal', processes=[1], signal={signal.SIGKILL:d})")
    died = here("[e for e in wait_for('died') if e['event'] == 'died'][0]")
    assert (died["host"], died["index"], died["pid"]) == ("hostB", 1, pids[1])
    here("ask('stop', roles=['engine'], grace_seconds=1)")
    assert here("ask('look')['looks']") == []
    assert here("agents.close()") is None
    until(lambda: not hosts.b.processes(), "the agent has ended")
    assert not hosts.b.files()


def of_environment(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def test_a_process_has_its_hosts_variables_and_some_of_the_notebooks(
    hosts: Hosts, notebook: Start
) -> None:
    hosts.b.path(".bashrc").write_text(f"export OF_B=b JAX_ENABLE_X64=0 PYTHONPATH={ROOT}\n")
    env = {"JAX_ENABLE_X64": "1", "SECRET": "s", "NAMED": "n", "PYTHONPATH": str(ROOT)}
    hosts.a.run("mkdir", "/root/only-here")
    here = notebook("hostB", launcher="local", env=env, folder="/root/only-here",
                    asked={"names": ["NAMED"]})  # fmt: skip
    hosts.b.path(".bashrc").unlink()
    (told,) = here("agents.notes()")
    assert told.startswith("hostB had no directory /root/only-here")
    assert "began in /root." in told
    here("start_engines(1)")

    def found() -> list[int]:
        words = hosts.b.processes()
        return [pid for pid in words if "HERE" in of_environment(pid)]

    assert not found(), "only what the user has named comes from the notebook"
    engine = next(pid for pid, words in hosts.b.processes().items() if "launch.children" in words
                  and os.readlink(f"/proc/{pid}/cwd") == "/root"
                  and "NAMED" in of_environment(pid))  # fmt: skip
    environment = of_environment(engine)
    expected = {"JAX_ENABLE_X64": "1", "OF_B": "b", "NAMED": "n", "HOME": "/root"}
    assert {name: environment.get(name) for name in expected} == expected
    assert "SECRET" not in environment
    assert not any("=n" in words for words in hosts.b.processes().values())
    here("agents.close()")
    hosts.a.run("rmdir", "/root/only-here")


@pytest.mark.thorough
def test_commands_go_to_the_host_of_their_process(hosts: Hosts, notebook: Start) -> None:
    """Without a tunnel between the hosts the process on hostB waits for the service."""
    here = notebook("hostA", "hostB")
    assert [each["host"] for each in here.facts] == ["hostA", "hostB"]
    assert here("agents.directory") == here.facts[0]["folder"]
    assert [index for index, _ in here("start_engines(1, 1)")] == [0, 1]
    looks = here("ask('look')['looks']")
    assert [index for index, _ in looks] == [0, 1]
    here(f"ask('signal', processes=[1], signal={signal.SIGSTOP:d})")
    until(lambda: dict(here("ask('look')['looks']"))[1][0] == "stopped")
    assert dict(here("ask('look')['looks']"))[0][0] != "stopped"
    here("ask('stop', roles=['engine'], grace_seconds=0)")
    assert here("ask('look')['looks']") == []
    assert len(here("ask('facts', gpus=False)['facts']")) == 2
    agent = next(pid for pid, words in hosts.b.processes().items() if "launch.agent" in words)
    os.kill(agent, signal.SIGSTOP)
    assert not here("agents.request('look').done()")
    until(lambda: here("agents.silence(5)").startswith("hostB has not answered for 5 s: "))
    os.kill(agent, signal.SIGCONT)
    until(lambda: not here("agents.silence(5)"), "it has answered")
    os.kill(agent, signal.SIGSTOP)
    until(lambda: here("agents.lost()") == ["hostB"], "it is silent")
    os.kill(agent, signal.SIGCONT)
    assert here("agents._members[1].client.request('look').result(60) and agents.lost()") == []
    here("agents.close()")
    until(lambda: not hosts.b.processes())


@pytest.mark.thorough
@pytest.mark.parametrize("names", [["hostB"], ["hostA", "hostB"]])
def test_nothing_is_left_after_a_notebook_that_was_killed(
    hosts: Hosts, notebook: Start, names: list[str]
) -> None:
    here = notebook(*names)
    here(f"start_engines(*{[1] * len(names)})")
    assert len(hosts.b.processes()) >= 3
    here.kill()
    until(lambda: not hosts.left(), "nothing is left on either host")


def test_a_process_that_a_notebook_has_forked_keeps_no_agent(hosts: Hosts, notebook: Start) -> None:
    here = notebook("hostB")
    here("os.fork() or signal.pause()")
    here.kill()
    until(lambda: not hosts.b.processes() and not hosts.b.files(), "nothing is left on hostB")
    until(lambda: len(hosts.a.processes()) == 1, "only what the notebook has forked is left")
    os.kill(*hosts.a.processes(), signal.SIGKILL)


@pytest.mark.thorough
def test_a_host_whose_connection_ends_is_lost_and_nothing_is_left_on_it(
    hosts: Hosts, notebook: Start
) -> None:
    here = notebook("hostA", "hostB")
    pids = dict(here("start_engines(1, 1)"))
    (ssh,) = [pid for pid, words in hosts.a.processes().items() if words.startswith("ssh -T")]
    os.kill(ssh, signal.SIGKILL)
    (died,) = [e for e in here("wait_for('died')") if e["event"] != "text"]
    assert died == {"event": "died", "role": "engine", "index": 1, "pid": pids[1], "status": None,
                    "tail": "", "host": "hostB", "how": died["how"]}  # fmt: skip
    assert died["how"].endswith("the connection to its agent ended with status -9")
    refused = here("str(agents._members[1].client.request('look').exception(60))")
    assert refused.startswith("The connection to hostB has ended (status -9), and with it all pro")
    until(lambda: not hosts.b.processes() and not hosts.b.files(), "nothing is left on hostB")
    assert [index for index, _ in here("ask('look')['looks']")] == [0]
    here("ask('stop', roles=['engine'], grace_seconds=0)")
    here("agents.close()")


# ---------------------------------------------------------------------- refusals

CONFIG = """
Host closed
  HostName hostB
  Port 9
Host stranger
  HostName hostB
  HostKeyAlias stranger
Host denied
  HostName hostB
  HostKeyAlias hostB
  IdentitiesOnly yes
  IdentityFile ~/.ssh/host_key
"""


def refused(hosts: Hosts, *names: str, python: str = "", folder: str = str(ROOT)) -> str:
    """Returns why a notebook on hostA gets no agents."""
    asked = json.dumps({"hosts": names, "launcher": "fork", "python": python})
    env = {"PYTHONPATH": str(ROOT)}
    tried = hosts.a.run(PYTHON, "-c", NOTEBOOK, asked, folder=folder, env=env, check=False)
    assert (tried.returncode, tried.stdout) == (1, ""), tried.stderr
    until(lambda: not hosts.left(), "nothing is left on either host")
    assert tried.stderr.startswith("StartError: "), tried.stderr
    assert "Nothing was started." in tried.stderr
    return tried.stderr


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["nowhere"], "on nowhere: its name does not resolve"),
        (["closed"], "on closed: nothing answers on its port 9 (connection refused)"),
        (["stranger"], "on stranger: ssh does not know its host key"),
        (["denied"], "on denied: it does not accept your key"),
        (["hostA", "hostB", "nowhere"], "on nowhere: its name does not resolve"),
    ],
)
def test_a_host_that_ssh_does_not_reach_is_refused(
    hosts: Hosts, names: list[str], told: str
) -> None:
    config = hosts.a.path(".ssh/config")
    config.write_text(CONFIG)
    config.chmod(0o600)
    assert f"No agent could be started {told}" in refused(hosts, *names)


@pytest.mark.thorough  # ssh waits for ten seconds
def test_a_host_that_does_not_answer_is_refused(hosts: Hosts) -> None:
    hosts.cut()
    assert "nothing answers on its port 22 (connection timed out)" in refused(hosts, "hostB")


@pytest.mark.parametrize(
    ("python", "folder", "told"),
    [
        ("/opt/nowhere/python", str(ROOT), "it has no Python `/opt/nowhere/python`"),
        (f"{sys.base_prefix}/bin/python3", "/root", "there has no package jaxnb"),
    ],
)
def test_a_host_without_jaxnb_is_refused(hosts: Hosts, python: str, folder: str, told: str) -> None:
    assert told in refused(hosts, "hostB", python=python, folder=folder)


def test_a_host_with_another_jax_is_refused(hosts: Hosts) -> None:
    other = hosts.b.path("other/jax-0.0.1.dist-info")
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: jax\nVersion: 0.0.1\n")
    hosts.b.path(".bashrc").write_text("export PYTHONPATH=/root/other\n")
    said = refused(hosts, "hostB")
    hosts.b.path(".bashrc").unlink()
    assert "hostB has JAX 0.0.1, and the notebook JAX " in said


def test_what_a_shell_prints_is_passed_over_unless_it_ends_there(
    hosts: Hosts, notebook: Start
) -> None:
    startup = hosts.b.path(".bashrc")
    startup.write_text("echo 'This account is closed.'; exit 3\n")
    said = refused(hosts, "hostB")
    assert "ended with exit status 3 before the agent began" in said
    assert "\n    This account is closed.\n" in said
    startup.write_text("echo '{\"reply\": 0}'; printf 'no end of the line'\n")
    here = notebook("hostB")
    startup.unlink()
    assert here.facts[0]["host"] == "hostB"
    here("agents.close()")
