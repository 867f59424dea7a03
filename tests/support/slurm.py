"""Slurm on the two hosts of :mod:`support.hosts`, a node each.

By hand, as root (Debian: ``apt-get install slurm-wlm munge`` too), in the checkout::

    PYTHONPATH=tests .venv/bin/python -m support.slurm salloc -N2 --ntasks-per-node=2 bash
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

from support.hosts import ADDRESSES, PATH, SHARED, Host, Hosts, cannot, two_hosts

PROGRAMS = ("slurmctld", "slurmd", "munged", "salloc")

DAEMONS = ("slurmctld", "slurmscriptd", "slurmd", "slurmstepd", "munged")

CONF = """\
ClusterName=jaxnb
SlurmctldHost=hostA({address_hostA})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
NodeName=hostA NodeAddr={address_hostA} CPUs=8 RealMemory=8000
NodeName=hostB NodeAddr={address_hostB} CPUs=8 RealMemory=8000
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""

# A program's expression.
PLACES = "[each.host for each in session.processes]"


def cannot_slurm() -> str:
    """Returns why there can be no Slurm here; empty if there can."""
    missing = [each for each in PROGRAMS if shutil.which(each, path=PATH) is None]
    return f"Slurm on two hosts takes {', '.join(missing)}" if missing else cannot()


@contextlib.contextmanager
def two_nodes() -> Iterator[Hosts]:
    """Starts two hosts with Slurm, both nodes idle. All that is on them ends with the block.

    Programs find Slurm by :func:`variables`.
    """
    with two_hosts() as hosts, contextlib.ExitStack() as daemons:
        folder = hosts.shared / "slurm"
        for each in (folder / "state", *(folder / "spool" / name for name in ADDRESSES)):
            each.mkdir(parents=True)
        addresses = {f"address_{name}": address for name, address in ADDRESSES.items()}
        (folder / "slurm.conf").write_text(CONF.format(folder=folder, **addresses))
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for host in (hosts.a, hosts.b):
            host.run("mkdir", "-m", "755", "/run/munge")
            files = [f"--{what}-file=/run/munge/{what}" for what in ("log", "pid", "seed")]
            words = ["munged", "--foreground", "--force", f"--key-file={key}", *files]
            daemons.enter_context(_daemon(hosts, host, *words))
        for host in (hosts.a, hosts.b):
            _wait(hosts, host, "munge -n")
        daemons.enter_context(_daemon(hosts, hosts.a, "slurmctld", "-D"))
        for host in (hosts.a, hosts.b):
            daemons.enter_context(_daemon(hosts, host, "slurmd", "-D", "-N", host.name))
        _wait(hosts, hosts.a, "[ $(sinfo -h -o %T) = idle ]")
        yield hosts


def variables(hosts: Hosts) -> dict[str, str]:
    """Returns the variables by which programs on the hosts find Slurm."""
    return {"SLURM_CONF": str(hosts.shared / "slurm" / "slurm.conf")}


def users(host: Host) -> dict[int, str]:
    """Returns what runs on a node beside Slurm; see :meth:`~support.hosts.Host.processes`."""
    found = host.processes().items()
    return {pid: words for pid, words in found if not any(each in words for each in DAEMONS)}


@contextlib.contextmanager
def _daemon(hosts: Hosts, host: Host, *words: str) -> Iterator[None]:
    log = hosts.shared / f"{words[0]}-{host.name}.log"
    settings = {"stderr": subprocess.STDOUT, "env": variables(hosts)}
    with log.open("w") as file, host.popen(*words, stdout=file, **settings) as process:
        try:
            yield
        finally:
            os.kill(host.outer(process), signal.SIGTERM)


def _wait(hosts: Hosts, host: Host, condition: str) -> None:
    words = f"until {condition}; do sleep 0.05; done >/dev/null 2>&1"
    host.run("sh", "-c", words, env=variables(hosts))


def main() -> int:
    """Runs a command on hostA; both hosts end with it."""
    if reason := cannot_slurm():
        print(reason, file=sys.stderr)
        return 1
    with two_nodes() as hosts:
        env = {SHARED: str(hosts.shared), **variables(hosts)}
        return hosts.a.popen(*sys.argv[1:], folder=os.getcwd(), env=env).wait()


if __name__ == "__main__":
    sys.exit(main())
