"""MPICH and Open MPI, each in an environment of its own, beside the packages of ``.venv``.

``scripts/install_mpi.sh`` makes them, and ``make test-all`` calls it.

By hand, in the checkout::

    PYTHONPATH=tests .venv/bin/python -m support.mpi mpich python -m pytest tests/integration
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from support.hosts import PATH, ROOT


@dataclass(frozen=True)
class Mpi:
    """An environment with an MPI, mpi4py and mpi4jax.

    Attributes:
        name: ``"mpich"`` or ``"openmpi"``.
        here: What mpiexec needs for more ranks on this host than there are cores.
        over: By what it starts ranks over ssh; ``{hosts}`` stands for hosts.
        settings: What its programs need in their environment.
    """

    name: str
    here: tuple[str, ...]
    over: tuple[str, ...]
    settings: dict[str, str]

    @property
    def folder(self) -> Path:
        return ROOT / f".venv-{self.name}"

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def cannot(self) -> str:
        """Returns why it cannot be used here; empty if it can."""
        if (self.folder / ".dev").exists():
            return ""
        return f"there is no {self.folder.name}: scripts/install_mpi.sh {self.name} makes it"

    def variables(self, ipython: Path, hosts: Collection[str] = ()) -> dict[str, str]:
        """Returns the environment in which ipyparallel's MPI launcher starts its mpiexec.

        Args:
            ipython: A folder for IPython's profiles, which has the launcher's configuration then.
            hosts: Where ranks run: two on each, in this order; else on this host.
        """
        slots = ",".join(f"{host}:2" for host in hosts)
        args = [each.format(hosts=slots) for each in self.over] if hosts else self.here
        profile = ipython / "profile_default"
        profile.mkdir(parents=True)
        config = f"c = get_config()\nc.MPIEngineSetLauncher.mpi_args = {[*args]!r}\n"
        (profile / "ipcluster_config.py").write_text(config)
        path = os.pathsep.join([str(self.folder / "bin"), PATH])
        return {**self.settings, "IPYTHONDIR": str(ipython), "PATH": path}

    def wrapper(self, source: Path) -> str:
        """Builds MPIwrapper from its source folder; returns what ``MPITRAMPOLINE_LIB`` names."""
        words = [ROOT / "scripts" / "build_mpiwrapper.sh", source, self.name]
        built = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
        return built.stdout.strip()


# mpi4jax warns of each JAX that is newer than the one that it was tested with.
QUIET = {"MPI4JAX_NO_WARN_JAX_VERSION": "1"}

# Open MPI gives other hosts what is named only.
_NAMED = [word for name in [*QUIET, "JAXNB_DIAL_BACK", "PYTHONPATH"] for word in ("-x", name)]

MPIS = {
    "mpich": Mpi("mpich", (), ("-launcher", "ssh", "-hosts", "{hosts}"), QUIET),
    "openmpi": Mpi(
        "openmpi",
        ("--oversubscribe",),
        ("--host", "{hosts}", *_NAMED),
        QUIET | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    ),
}


def main() -> int:
    """Runs a command in the environment of an MPI: its Python and mpiexec are first on PATH."""
    mpi = MPIS[sys.argv[1]]
    if reason := mpi.cannot():
        print(reason, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="ipython-") as folder:
        env = {**os.environ, **mpi.variables(Path(folder) / "ipython")}
        return subprocess.run(sys.argv[2:], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
