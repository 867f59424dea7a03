"""Two hosts on this machine, hostA and hostB, for tests of groups over several hosts.

Each has its own network, processes, IPC, host name, ``/tmp``, ``/var/tmp``, ``/dev/shm``, ``/run``
and home, and an sshd. A link joins them, and their names resolve on both. The rest of the file
system is this machine's, at the same paths: the checkout, its ``.venv`` and :attr:`Hosts.shared`.
Nothing of them is global (no named namespace, no bridge), so that several pairs can run side by
side, and nothing is left: the first process of each reads a pipe from the process that has started
it and ends when that ends, in whatever way; and with it the kernel ends all others of the host.

By hand, as root (Debian: ``apt-get install openssh-server iproute2``), in the checkout::

    .venv/bin/python -m tests.support.hosts                      # a shell on hostA
    .venv/bin/python -m tests.support.hosts ssh hostB hostname   # any command on hostA

The command finds the path of :attr:`Hosts.shared` in the variable ``TWO_HOSTS_SHARED``, and of this
program's other variables none.

In a test, with the fixture ``hosts`` or by itself::

    with two_hosts() as hosts:
        hosts.a.run("ssh", "hostB", "true")
        program = hosts.a.popen(sys.executable, "-c", "...", stdout=subprocess.PIPE)
        hosts.cut(); hosts.restore()
        hosts.b.processes(), hosts.b.files()
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

PRIVATE = ("/tmp", "/var/tmp", "/dev/shm", "/run")
"""What each host has for itself, beside its user's home."""

SHARED = "TWO_HOSTS_SHARED"

ADDRESSES = {"hostA": "10.77.0.1", "hostB": "10.77.0.2"}
PROGRAMS = ("unshare", "nsenter", "mount", "ip", "sshd", "ssh", "ssh-keygen")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SPACES = ("-m", "-u", "-i", "-n", "-p")

NEEDS = "two hosts on one machine take root, namespaces, openssh-server and iproute2"

SSHD = """\
HostKey ~/.ssh/host_key
AuthorizedKeysFile %h/.ssh/authorized_keys
PermitRootLogin yes
UsePAM no
"""

INIT = """
set -eu
read -r pid rest </proc/self/stat; echo "$pid"  # as this machine counts: it is its /proc still
mount --make-rprivate /
mount --rbind / /mnt
mount -t proc proc /proc
hostname "$NAME"
mount --bind "$FOLDER/hosts" /etc/hosts
for each in $PRIVATE; do mount -t tmpfs -o mode=1777 tmpfs "$each"; done
mount -t tmpfs -o mode=700 tmpfs "$HOME"
for each in $KEPT; do mkdir -p "$each"; mount --rbind "/mnt$each" "$each"; done
cp -r "/mnt$FOLDER/$NAME" "$HOME/.ssh"
umount -l /mnt
mkdir -p -m 755 /run/sshd
ip link set lo up
/usr/sbin/sshd -f "$HOME/.ssh/sshd_config" -E /run/sshd.log
until [ -n "$(ssh-keyscan 127.0.0.1 2>/dev/null)" ]; do :; done
echo ready
trap '' CHLD  # the kernel reaps what the first process inherits
exec cat
"""
"""What the first process of a host does: the shell, then ``cat`` until its pipe is closed."""


def cannot() -> str:
    """Returns why there can be no hosts here; empty if there can."""
    missing = [each for each in PROGRAMS if shutil.which(each, path=PATH) is None]
    if missing:
        return f"{NEEDS} (missing: {', '.join(missing)})"
    words = ["unshare", *SPACES, "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    tried = subprocess.run(words, capture_output=True, text=True, check=False)
    return f"{NEEDS} ({tried.stderr.strip()})" if tried.returncode else ""


@dataclass(frozen=True)
class Host:
    """One of the two.

    Attributes:
        name: ``"hostA"`` or ``"hostB"``.
        pid: Its first process, as this machine counts.
        kept: What is visible in its ``/tmp`` and the like from the beginning.
    """

    name: str
    pid: int
    kept: frozenset[str]

    def _call(self, words: tuple[str, ...], settings: dict[str, Any]) -> dict[str, Any]:
        folder = settings.pop("folder", os.path.expanduser("~"))
        enter = ["nsenter", "-t", str(self.pid), *SPACES, "--", "env", "-C", folder]
        env = {"PATH": PATH, "HOME": os.path.expanduser("~"), "LANG": "C.UTF-8"}
        return {"args": [*enter, *words], **settings, "env": env | settings.get("env", {})}

    def popen(self, *words: str, **settings: Any) -> subprocess.Popen[Any]:
        """Starts a program on the host. The result is its parent's; see :meth:`outer`.

        Args:
            words: Its command line.
            settings: As for :class:`subprocess.Popen`; ``env`` adds to the little that the host's
                programs have in their environment. ``folder`` is where it runs: else the home.
        """
        return subprocess.Popen(**self._call(words, settings))

    def run(self, *words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
        """Runs a program on the host to its end, as :meth:`popen`; its output is kept as text.

        Raises:
            subprocess.CalledProcessError: It failed, and ``check=False`` was not given.
        """
        settings = {"capture_output": True, "text": True, "timeout": 90} | settings
        check = settings.pop("check", True)
        return subprocess.run(**self._call(words, settings), check=check)

    def outer(self, program: subprocess.Popen[Any]) -> int:
        """Returns the process of a program started by :meth:`popen`, as this machine counts.

        Wait for its first output before; until then it may not be there.
        """
        children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
        return int(children.read_text().split()[0])

    def processes(self) -> dict[int, str]:
        """Returns what runs on the host beside its first process and its sshd.

        Returns:
            Process ids, as this machine counts (so that they can be signalled), to command lines.
        """
        space = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # it has ended
                words = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                is_own = int(name) == self.pid or "[listener]" in words
                # One that has ended, and has not been reaped, has no words.
                if words and not is_own and os.readlink(f"/proc/{name}/ns/pid") == space:
                    found[int(name)] = words.strip()
        return found

    def files(self) -> set[str]:
        """Returns what programs have left in the host's ``/tmp``, ``/var/tmp`` and ``/dev/shm``."""
        found = set()
        for folder in PRIVATE[:3]:
            found |= {f"{folder}/{name}" for name in os.listdir(self.path(folder))}
        return found - self.kept

    def path(self, path: str) -> Path:
        """Returns where this machine sees a file of the host's; a relative one is in its home."""
        return Path(f"/proc/{self.pid}/root{Path(os.path.expanduser('~'), path)}")


@dataclass(frozen=True)
class Hosts:
    """Both.

    Attributes:
        a: hostA, where a test's notebook runs.
        b: hostB.
        shared: A folder that both have, at the path that it has here.
    """

    a: Host
    b: Host
    shared: Path

    def cut(self) -> None:
        """Cuts the link between them: what is sent is lost in silence, and no connection ends."""
        for host in (self.a, self.b):
            host.run("tc", "qdisc", "replace", "dev", "eth0", "root", "blackhole")

    def restore(self) -> None:
        """Restores the link, if it is cut."""
        for host in (self.a, self.b):
            host.run("tc", "qdisc", "replace", "dev", "eth0", "root", "pfifo")

    def left(self) -> dict[str, list[str]]:
        """Returns the processes and files of each host that has any."""
        found = {
            each.name: [*each.processes().values(), *each.files()] for each in (self.a, self.b)
        }
        return {name: left for name, left in found.items() if left}


@contextlib.contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Starts both hosts. All that is on them ends with the block, or with this process."""
    with contextlib.ExitStack() as stack:
        # In no folder of a test's, whose path a host may want for itself.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hosts-", dir="/tmp")))
        shared = folder / "shared"
        shared.mkdir()
        _write_keys(folder)
        a, b = (stack.enter_context(_host(name, folder, _kept(shared))) for name in ADDRESSES)
        ends = [("eth0", "netns", str(each.pid)) for each in (a, b)]
        words = ["ip", "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1]]
        subprocess.run(words, check=True)
        for host in (a, b):
            host.run("ip", "addr", "add", f"{ADDRESSES[host.name]}/24", "dev", "eth0")
            host.run("ip", "link", "set", "eth0", "up")
        yield Hosts(a, b, shared)


def _kept(shared: Path) -> list[Path]:
    """Returns what must stay visible in the folders that hosts have for themselves."""
    hidden = (*PRIVATE, os.path.expanduser("~"))
    needed = {ROOT, (ROOT / ".venv").resolve(), Path(sys.prefix), Path(sys.base_prefix), shared}
    return sorted(path for path in needed if any(map(path.is_relative_to, hidden)))


def _write_keys(folder: Path) -> None:
    """Writes each host's ``~/.ssh``: it may log in to both, and knows both."""
    names = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    known = ""
    for name in ("user", *ADDRESSES):
        words = [
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            name,
            "-f",
            folder / f"{name}.key",
        ]
        subprocess.run(words, check=True)
    for name, address in ADDRESSES.items():
        known += f"{name},{address} {(folder / f'{name}.key.pub').read_text()}"
    for name in ADDRESSES:
        own = folder / name
        own.mkdir()
        shutil.copy(folder / "user.key", own / "id_ed25519")
        shutil.copy(folder / "user.key.pub", own / "authorized_keys")
        shutil.copy(folder / f"{name}.key", own / "host_key")
        (own / "known_hosts").write_text(known)
        (own / "sshd_config").write_text(SSHD.replace("~", os.path.expanduser("~")))


@contextlib.contextmanager
def _host(name: str, folder: Path, kept: list[Path]) -> Iterator[Host]:
    """Starts one, without a link to the other."""
    env = {"PATH": PATH, "HOME": os.path.expanduser("~"), "NAME": name, "FOLDER": str(folder)}
    env |= {"PRIVATE": " ".join(PRIVATE), "KEPT": " ".join(map(str, kept))}
    process = subprocess.Popen(
        ["unshare", *SPACES, "--fork", "--kill-child", "sh", "-c", INIT],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a terminal's interrupt is for the test
    )
    with process:  # closes its pipes, and waits
        assert process.stdout is not None
        pid = process.stdout.readline()
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{name} could not be started: see its standard error.")
        parents = {str(parent) for path in kept for parent in (path, *path.parents)}
        yield Host(name, int(pid), frozenset(parents))


def main() -> int:
    """Runs a command on hostA, a shell if none is given; both hosts end with it."""
    if reason := cannot():
        print(reason, file=sys.stderr)
        return 1
    with two_hosts() as hosts:
        settings = {"folder": os.getcwd(), "env": {SHARED: str(hosts.shared)}}
        return hosts.a.popen(*(sys.argv[1:] or ["bash"]), **settings).wait()


if __name__ == "__main__":
    sys.exit(main())
