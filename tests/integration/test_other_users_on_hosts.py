"""What another user of a host gets of a group over two hosts: nothing on either."""

from __future__ import annotations

import json
import pwd
import sys
from pathlib import Path
from typing import Any

import pytest

from support.hosts import Host, Hosts
from support.remote import Program

pytestmark = [pytest.mark.may_be_skipped, pytest.mark.thorough]

START = "session = jaxnb.start(2, hosts='hostA:1,hostB:1', platform='cpu')"
CELL = "x = jax.jit(lambda x: x + 1)(jnp.arange(3.0))"

ATTEMPTS = """
import json, os, socket, sys
from pathlib import Path

told = json.loads(sys.argv[1])
if told["uid"]:
    os.setgroups([])
    os.setgid(told["gid"])
    os.setuid(told["uid"])

def connect(path):
    with socket.socket(socket.AF_UNIX) as tried:
        tried.connect(path)

got, seen = [], ""
attempts = [(os.listdir, each) for each in told["folders"]]
attempts += [(connect, each) for each in told["sockets"]]
for pid in filter(str.isdigit, os.listdir("/proc")):
    words = Path(f"/proc/{pid}/cmdline")
    seen += words.read_text()
    if b"jaxnb" in words.read_bytes() and int(pid) != os.getpid():
        attempts += [(os.listdir, f"/proc/{pid}/fd")]
        attempts += [(lambda path: open(path, "rb").close(), f"/proc/{pid}/{name}")
                     for name in ("environ", "mem", "maps")]
for attempt, path in attempts:
    try:
        attempt(path)
        got.append(path)
    except PermissionError:
        pass
print(json.dumps({"tried": len(attempts), "got": got, "seen": seen}))
"""


def attempt(host: Host, user: pwd.struct_passwd | None, folder: str) -> dict[str, Any]:
    """Returns what a user gets on a host, None being this one."""
    inside = host.path(folder)
    told = {
        "uid": user.pw_uid if user else 0,
        "gid": user.pw_gid if user else 0,
        "folders": [folder],
        "sockets": [f"{folder}/{each.name}" for each in inside.iterdir() if each.is_socket()],
    }
    done = host.run(sys.executable, "-c", ATTEMPTS, json.dumps(told))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_another_user_of_either_host_gets_nothing(hosts: Hosts) -> None:
    nobody = pwd.getpwnam("nobody")
    program = Program(hosts.a)
    program.do(START)
    program.do(f"session.run({CELL!r})")
    secrets = [program.do("session._life.transport.key.decode()"), "PRIVATE KEY"]
    for host in (hosts.a, hosts.b):
        (folder,) = [each for each in host.files() if "/jaxnb-" in each]
        mine, others = (attempt(host, user, folder) for user in (None, nobody))
        assert len(mine["got"]) == mine["tried"] == others["tried"] > 20
        assert others["got"] == []
        environments = "".join(Path(f"/proc/{pid}/environ").read_text() for pid in host.processes())
        for secret in secrets:
            assert secret not in others["seen"]
            assert secret not in environments
    program.close()
