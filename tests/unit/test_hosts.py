"""Several hosts: who runs where, what is sent to which, and why one is refused."""

from __future__ import annotations

import json
import re
from concurrent.futures import Future
from typing import Any

import pytest

from jaxnb.errors import SessionBrokenError, StartError, UsageError
from jaxnb.launch.answers import joined, merge, translated
from jaxnb.launch.placement import AskedHost, parse_hosts, place_on_hosts
from jaxnb.launch.remote import AgentStart, travelling
from jaxnb.launch.slurm import SRUN, tasks_of, with_nodes
from jaxnb.launch.slurm_jobs import seconds_of
from jaxnb.launch.ssh import SSH
from jaxnb.model.group import HostFacts
from jaxnb.options import StartOptions, launcher_of, submits_job, with_job

# ---------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("hostA", [("hostA", None)]),
        ("hostA,hostB:2", [("hostA", None), ("hostB", 2)]),
        ("ann@a.org:12, b", [("ann@a.org", 12), ("b", None)]),
        ("[fe80::1]:3,10.0.0.2", [("fe80::1", 3), ("10.0.0.2", None)]),
    ],
)
def test_hosts_are_named(text: str, hosts: list[tuple[str, int | None]]) -> None:
    assert parse_hosts(text) == tuple(AskedHost(*each) for each in hosts)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not ''"),
        ("hostA,", "not ''"),
        ("hostA:0", "not 'hostA:0'"),
        ("hostA:two", "not 'hostA:two'"),
        ("-oProxyCommand=x", "not '-oProxyCommand=x'"),
        ("a b", "not 'a b'"),
        ("hostA:2,hostA", "twice.*`hostA:2`"),
    ],
)
def test_what_is_no_host_is_refused(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=rf"(?s)--hosts.*{told}") as refused:
        parse_hosts(text)
    assert "Nothing was started." in str(refused.value)


# ---------------------------------------------------------------------- placement


def facts(cores: int = 4, gpus: int = 0) -> HostFacts:
    names = tuple(map(str, range(gpus)))
    return HostFacts("h", "/tmp/f", "/home", "3.13.0", "0.12", "0.1", cores, names, 1 << 30)


def place(
    text: str, *hosts: HostFacts, environment: dict[str, str] | None = None, **asked: Any
) -> Any:
    return place_on_hosts(StartOptions(**asked), parse_hosts(text), hosts, environment or {})


CPU, ONE, TWO, EIGHT = facts(), facts(gpus=1), facts(gpus=2), facts(gpus=8)


@pytest.mark.parametrize(
    ("text", "hosts", "n", "platform", "counts"),
    [
        ("a", [CPU], None, "cpu", (4,)),
        ("a", [CPU], 3, "cpu", (3,)),
        ("a,b", [CPU, CPU], None, "cpu", (4, 4)),
        ("a,b", [CPU, CPU], 4, "cpu", (2, 2)),
        ("a,b", [CPU, CPU], 5, "cpu", (3, 2)),
        ("a,b,c", [CPU, CPU, CPU], 4, "cpu", (2, 1, 1)),
        ("a,b", [facts(cores=2), facts(cores=6)], 8, "cpu", (2, 6)),
        ("a,b", [facts(cores=1), facts(cores=64)], 4, "cpu", (1, 3)),
        ("a:3,b", [CPU, CPU], 4, "cpu", (3, 1)),
        ("a:3,b", [CPU, CPU], None, "cpu", (3, 4)),
        ("a:1,b:2", [CPU, CPU], 3, "cpu", (1, 2)),
        ("a:40", [facts(cores=2)], None, "cpu", (40,)),
        ("a,b", [TWO, EIGHT], None, "gpu", (2, 8)),
        ("a,b", [TWO, EIGHT], 5, "gpu", (1, 4)),
        ("a,b", [TWO, EIGHT], 10, "gpu", (2, 8)),
        ("a:2,b", [TWO, EIGHT], 3, "gpu", (2, 1)),
        ("a,b:1", [TWO, EIGHT], None, "gpu", (2, 1)),
    ],
)
def test_who_runs_where(
    text: str, hosts: list[HostFacts], n: int | None, platform: str, counts: tuple[int, ...]
) -> None:
    placement = place(text, *hosts, num_processes=n)
    assert (placement.platform, placement.counts) == (platform, counts)
    assert placement.num_processes == len(placement.environments) == sum(counts)
    if platform == "gpu":
        shown = [each["CUDA_VISIBLE_DEVICES"] for each in placement.environments]
        assert shown == [str(i) for count in counts for i in range(count)]


@pytest.mark.parametrize(
    ("text", "hosts", "asked", "told"),
    [
        ("a,b", [CPU, CPU], {"num_processes": 1}, r"1 process, .* at least 2 .*`-n 2`"),
        ("a:2,b:2", [CPU, CPU], {"num_processes": 5}, r"5 processes, .* asks for 4 .*`-n 4`"),
        ("a:2,b", [CPU, CPU], {"num_processes": 2}, r"2 processes, .* at least 3 .*`-n 3`"),
        ("a,b", [ONE, TWO], {"num_processes": 4},
         r"4 processes .*1 GPU on a, 2 GPUs on b.*`-n 3`, or with `-n 4 --platform cpu`"),
        ("a:3,b", [TWO, TWO], {}, r"3 processes .*on a, which has 2 GPUs.*`a:2`"),
        ("a,b", [TWO, CPU], {}, r"No GPU was found on b .*--platform cpu"),
        ("a,b", [CPU, CPU], {"platform": "gpu"}, r"No GPU was found on a and b "),
        ("a,b", [TWO, TWO], {"platform": "gpu", "devices_per_process": 2}, r"one process per GPU"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    text: str, hosts: list[HostFacts], asked: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=rf"(?s){told}") as refused:
        place(text, *hosts, **asked)
    assert "Nothing was started." in str(refused.value)


def test_nccl_stays_on_a_host_only_if_there_is_one() -> None:
    assert place("a", TWO).environments[0]["NCCL_SOCKET_IFNAME"] == "lo"
    assert "NCCL_SOCKET_IFNAME" not in place("a,b", ONE, ONE).environments[0]


# ---------------------------------------------------------------------- what an agent is sent


def test_jaxs_variables_travel_and_those_that_the_user_names() -> None:
    notebook = {"JAX_X": "1", "XLA_FLAGS": "", "NCCL_DEBUG": "INFO", "HOME": "/h", "KEY": "k"}
    assert travelling(notebook) == {"JAX_X": "1", "XLA_FLAGS": "", "NCCL_DEBUG": "INFO"}
    assert travelling(notebook, ["KEY", "MISSING"])["KEY"] == "k"


def test_a_folder_with_any_name_is_one_word() -> None:
    start = AgentStart("u@h", "/a b/python", "/it's; rm -rf $HOME", "fork", 60)
    *options, host, command = SSH.command(start)
    assert (options[0], options[-1], host) == ("ssh", "--", "u@h")
    assert command.startswith("exec /bin/sh -c ")
    assert "'/it'\"'\"'s; rm -rf $HOME' '/a b/python' " in command


OLD, NEW = "/tmp/jaxnb-a b", "/var/tmp/jaxnb-c"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (OLD, NEW),
        (f"{OLD}/sentinel-7", f"{NEW}/sentinel-7"),
        ("unix:/tmp/jaxnb-a%20b/jax-3", f"unix:{NEW}/jax-3"),
        (json.dumps({"url": f"ipc://{OLD}/7"}), json.dumps({"url": f"ipc://{NEW}/7"})),
        ([{"x": OLD}, 3, None], [{"x": NEW}, 3, None]),
        (f"{OLD}c/x", f"{OLD}c/x"),
    ],
)
def test_paths_are_translated(before: Any, after: Any) -> None:
    assert translated(before, OLD, NEW) == after


# ---------------------------------------------------------------------- what they answer


def test_lists_of_answers_are_joined() -> None:
    answers = [{"pids": [[0, 7]]}, {"pids": [[1, 7]], "refused": "no room"}]
    assert merge(answers) == {"pids": [[0, 7], [1, 7]], "refused": "no room"}
    assert merge([]) == {}


LOST, FAILED = SessionBrokenError("lost"), StartError("failed")


@pytest.mark.parametrize(
    ("answers", "spared", "outcome"),
    [
        ([{"x": [1]}, {"x": [2]}], False, {"x": [1, 2]}),
        ([{"x": [1]}, LOST], True, {"x": [1]}),
        ([{"x": [1]}, LOST], False, LOST),
        ([LOST, LOST], True, LOST),
        ([{"x": [1]}, FAILED], True, FAILED),
        ([], True, {}),
    ],
)
def test_several_answers_are_one(answers: list[Any], spared: bool, outcome: Any) -> None:
    asked: dict[str, Future[Any]] = {str(i): Future() for i in range(len(answers))}
    result = joined(asked, dict, spared=spared)
    for future, answer in reversed([*zip(asked.values(), answers, strict=True)]):
        assert not result.done()
        future.set_exception(answer) if isinstance(answer, Exception) else future.set_result(answer)
    assert (result.exception() or result.result()) == outcome


# ---------------------------------------------------------------------- refusals

START = AgentStart("hostB", "/opt/python", "/home", "fork", 60)


@pytest.mark.parametrize(
    ("status", "errors", "reason", "then"),
    [
        (255, "ssh: Could not resolve hostname hostB: Name or service not known",
         "its name does not resolve", "~/.ssh/config"),
        (255, "ssh: connect to host hostB port 22: Connection refused",
         "nothing answers on its port 22 (connection refused)", "`ssh hostB true`"),
        (255, "ssh: connect to host hostB port 2222: Connection timed out",
         "nothing answers on its port 2222 (connection timed out)", "`ssh hostB true`"),
        (255, "Host key verification failed.", "does not know its host key", "`ssh hostB true`"),
        (255, "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
         "is not the one that ssh knows", "`ssh-keygen -R hostB`"),
        (255, "root@hostB: Permission denied (publickey,password).", "does not accept your key",
         "`ssh-copy-id hostB`"),
        (255, "kex_exchange_identification: Connection closed by remote host",
         "the connection failed", "`ssh hostB true`"),
        (127, "/bin/sh: 1: exec: /opt/python: not found", "it has no Python `/opt/python`",
         "at the same path"),
        (126, "/bin/sh: 1: exec: /opt/python: Permission denied", "it has no Python", "same path"),
        (1, "/opt/python: Error while finding module specification for 'jaxnb.launch.agent' "
         "(ModuleNotFoundError: No module named 'jaxnb')", "has no package jaxnb",
         "`ssh hostB /opt/python -m pip install …`"),
        (1, "/opt/python: No module named jaxnb.launch.agent", "has an older jaxnb",
         "the same jaxnb"),
        (1, "ModuleNotFoundError: No module named 'psutil'", "has no package psutil", " -m pip"),
        (3, "", "ended with exit status 3 before the agent began",
         "`ssh hostB /opt/python -c 'import jaxnb'`"),
    ],
)  # fmt: skip
def test_why_there_is_no_agent(status: int, errors: str, reason: str, then: str) -> None:
    text = SSH.refusal(START, status, errors, "Welcome!\n")
    first, *shown = text.splitlines()
    assert first.startswith("No agent could be started on hostB: ")
    assert reason in first
    assert " Nothing was started. " in first
    assert then in first.split("Nothing was started.")[1]
    assert shown == [f"    {line}" for line in ["Welcome!", *errors.splitlines()]]


OWN = {"python": "3.13.2", "jax": "0.12.0", "jaxnb": "0.1.0"}


@pytest.mark.parametrize(
    ("theirs", "named", "then"),
    [
        ({"python": "3.11.9"}, "has Python 3.11.9, and the notebook Python 3.13.2", "Python 3.13 "),
        ({"jax": "0.11.1"}, "JAX 0.11.1, and the notebook JAX 0.12.0", "pip install jax==0.12.0`"),
        ({"jaxnb": "0.2.0"}, "jaxnb 0.2.0, and the notebook jaxnb 0.1.0", "jaxnb==0.1.0`"),
        ({"jax": "1", "jaxnb": "2"}, "JAX 1 and jaxnb 2, ", "jax==0.12.0 jaxnb==0.1.0`"),
    ],
)
def test_other_versions_are_refused(theirs: dict[str, str], named: str, then: str) -> None:
    with pytest.raises(StartError) as refused:
        SSH.require_same(START, {**OWN, **theirs}, OWN)
    said = str(refused.value)
    assert said.startswith("hostB has ")
    assert named in said
    assert then in said.split("Nothing was started.")[1]


def test_another_patch_release_of_python_will_do() -> None:
    SSH.require_same(START, {**OWN, "python": "3.13.0"}, OWN)


@pytest.mark.parametrize("env", ["=x", "A B=x", "NOBODY_HAS_SET_IT"])
def test_variables_that_cannot_be_passed_on_are_refused(env: str) -> None:
    with pytest.raises(UsageError, match=r"--env .*Nothing was started"):
        StartOptions(hosts="hostB", env=(env,))


# ---------------------------------------------------------------------- Slurm


@pytest.mark.parametrize(
    ("text", "tasks"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("1,2(x2)", [1, 2, 2]), ("", [])]
)
def test_slurms_tasks_are_read(text: str, tasks: list[int]) -> None:
    assert tasks_of(text) == tasks


def test_without_an_allocation_a_job_is_submitted() -> None:
    options = StartOptions(launcher="slurm", nodes=2)
    for environment in ({}, {"SLURM_JOB_ID": "7"}, {"SLURM_JOB_NODELIST": "a"}):
        assert submits_job(with_nodes(options, environment))
        with pytest.raises(UsageError, match=r"names nodes of an allocation.*leave it out"):
            with_nodes(StartOptions(launcher="slurm", hosts="a"), environment)
    others = StartOptions(hosts="a")
    assert with_nodes(others, {}) is others


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (StartOptions(launcher="slurm"), 4),
        (StartOptions(launcher="slurm", nodes=6), 6),
        (StartOptions(launcher="slurm", nodes=2, gpus_per_node=4), 8),
        (StartOptions(3, launcher="mpi"), 3),
        (StartOptions(attach="site"), None),
        (StartOptions(hosts="a,b"), None),
    ],
)
def test_a_job_is_for_so_many_processes(options: StartOptions, count: int | None) -> None:
    assert with_job(options).num_processes == count


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (StartOptions(launcher="fork", nodes=2), "`--nodes` is for a job"),
        (StartOptions(hosts="a", time_limit="1:00"), "`--time` is for a job"),
        (StartOptions(launcher="nope"), "Unknown launcher 'nope'.*mpi"),
        (StartOptions(attach="site", hosts="a"), "`--launcher` and `--hosts` do not go with it"),
    ],
)
def test_launchers_that_do_not_fit_are_refused(options: StartOptions, told: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){told}.*Nothing was started"):
        launcher_of(options)


def test_more_nodes_than_processes_are_refused() -> None:
    with pytest.raises(UsageError, match="Each node needs a process"):
        with_job(StartOptions(2, launcher="slurm", nodes=3))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93784), ("2:03:04", 7384), ("3:04", 184), ("UNLIMITED", None)],
)
def test_times_of_slurm(text: str, seconds: int | None) -> None:
    assert seconds_of(text) == seconds


def test_slurm_is_refused_in_each_task_of_a_step() -> None:
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a", "SLURM_STEP_NUM_TASKS": "4"}
    with pytest.raises(UsageError, match=r"one of 4 tasks .* Nothing was started.*without srun"):
        with_nodes(StartOptions(launcher="slurm"), environment)


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ("srun: error: Unable to confirm allocation for job 7: Invalid job id", "has ended"),
        ("srun: error: x: Requested node configuration is not available", "is no node of the"),
        ("srun: error: something else", r"srun has failed.*`srun --overlap -N1 -n1 -w hostB true`"),
        ("No module named 'jaxnb'\nsrun: error: hostB: task 0: Exited with exit code 1",
         r"no package jaxnb.*`srun --overlap -N1 -n1 -w hostB /opt/python -m pip install"),
    ],
)  # fmt: skip
def test_why_srun_starts_no_agent_is_told(errors: str, told: str) -> None:
    text = SRUN.refusal(START, 1, errors)
    assert re.search(f"(?s)No agent could be started on hostB: .*{told}", text), text
