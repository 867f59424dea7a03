"""What another user of this machine gets of a group: nothing, told its addresses and its key.

Each attempt is made twice: as this user, where it has to succeed (or it would prove nothing), and
as another. That takes the right to become another user, which root has.
"""

from __future__ import annotations

import json
import os
import pwd
import select
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from jaxnb.launch.folder import LONGEST_NAME
from jaxnb.session import Session
from support.fixtures import PATIENT_SECONDS, assert_usable

pytestmark = pytest.mark.may_be_skipped

BECOME = "import os; os.setgroups([]); os.setgid({gid}); os.setuid({uid})\n"

PRELUDE = """
import contextlib, ctypes, glob, json, os, re, signal, socket, stat, sys, time, uuid
import zmq, zmq.backend, zmq.sugar
from jupyter_client.session import Session as Signer
from jaxnb.wire import peer_memory
told = json.loads(sys.argv[1])
signer = Signer(key=told.get("key", "").encode())
signer.serialize(signer.msg("warm", {}))  # what is imported late could not be read any more
context = zmq.Context()
found = []
"""

TELL = "\nprint(json.dumps(found, default=repr))\ncontext.destroy(linger=0)\n"


@pytest.fixture(scope="module")
def nobody() -> pwd.struct_passwd:
    """Another user of this machine."""
    try:
        user = pwd.getpwnam("nobody")
    except KeyError:
        pytest.skip("there is no other user, `nobody`")
    become = BECOME.format(uid=user.pw_uid, gid=user.pw_gid)
    tried = subprocess.run([sys.executable, "-c", become], capture_output=True, check=False)
    if os.geteuid() != 0 or tried.returncode:
        pytest.skip("to act as another user takes root")
    return user


NOBODY_SECONDS = 1.0
"""How long another user waits for what she is not to get. This one waits until she gets it."""


class Found(list[Any]):
    """What an attempt has found, once it has ended.

    Attributes:
        output: What it has said before.
    """

    output: IO[str]


@contextmanager
def attempt(code: str, user: pwd.struct_passwd | None, **told: Any) -> Iterator[Found]:
    """Runs code as a user, None being this one, beside the block; fills the list it has yielded.

    The block is entered once the code has become that user.
    """
    become = BECOME.format(uid=user.pw_uid, gid=user.pw_gid) if user else ""
    ready = "print('ready', flush=True)\n"
    told = {"milliseconds": (NOBODY_SECONDS if user else PATIENT_SECONDS) * 1000} | told
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + become + ready + code + TELL, json.dumps(told)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            found = Found()
            found.output = process.stdout
            yield found
            process.stdin.close()
            found.extend(json.loads(process.stdout.read()))
        finally:
            process.kill()


def both(code: str, user: pwd.struct_passwd, **told: Any) -> tuple[list[Any], list[Any]]:
    """Returns what code has found as this user, and as another."""
    with attempt(code, None, **told) as mine:
        pass
    with attempt(code, user, **told) as others:
        pass
    return mine, others


def key_of(session: Session) -> str:
    return session._life.transport.key.decode()


LISTENS = "00010000"


def sockets_of(session: Session) -> list[str]:
    """Those that somebody listens at: a group that was restarted leaves files."""
    known = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    listening = {each[7] for each in known if len(each) > 7 and each[3] == LISTENS}
    here = {str(p) for p in Path(session._life.cluster.directory).iterdir() if p.is_socket()}
    return sorted(here & listening)


SUBSCRIBE = """
subscriber = context.socket(zmq.SUB)
subscriber.subscribe(b"")
for path in told["sockets"]:
    with contextlib.suppress(zmq.ZMQError):
        subscriber.connect(f"ipc://{path}")
end = time.monotonic() + told["seconds"]
while not found and time.monotonic() < end:
    if subscriber.poll(100):
        heard = b"".join(subscriber.recv_multipart()).decode("latin-1")
        found += [heard] if told["secret"] in heard else []
print("heard", flush=True)
"""


def eavesdropped(session: Session, user: pwd.struct_passwd | None) -> list[Any]:
    """Returns what a user hears of cells; this one listens until she does, another for a while."""
    seconds = NOBODY_SECONDS if user else PATIENT_SECONDS
    told = {"sockets": sockets_of(session), "secret": "the password is", "seconds": seconds}
    with attempt(SUBSCRIBE, user, **told) as found:
        output, _, _ = select.select([found.output], [], [], 0)
        while not output:  # nothing tells when a subscription has come
            session.run("print('the password is', 7 * 191)")
            output, _, _ = select.select([found.output], [], [], 0)
        assert found.output.readline() == "heard\n"
    return found


def test_what_cells_print_is_not_read(session: Session, nobody: pwd.struct_passwd) -> None:
    assert eavesdropped(session, None)
    assert eavesdropped(session, nobody) == []
    assert_usable(session)


SEND = """
for channel in "mux", "control":
    sender = context.socket(zmq.DEALER)
    sender.linger = 0
    sender.connect(told["urls"][channel])
    cell = {"code": told["cell"], "silent": False}
    message = signer.serialize(signer.msg("execute_request", cell))
    sender.send_multipart([told["identity"].encode(), *message], zmq.DONTWAIT)
    found += [channel] if sender.poll(told["milliseconds"]) else []
"""


def test_a_cell_is_not_run_for_another(
    session: Session, nobody: pwd.struct_passwd, tmp_path: Path
) -> None:
    urls = session._life.transport._client._config
    got = []
    for user in (None, nobody):
        left = tmp_path / f"left-{user and user.pw_name}"
        told = {
            "urls": {channel: urls[channel] for channel in ("mux", "control")},
            "key": key_of(session),
            "identity": session._life.cluster.identities[2],
            "cell": f"open({str(left)!r}, 'w').close()",
        }
        with attempt(SEND, user, **told) as found:
            pass
        assert session.run("1").value == 1  # after all that was sent before
        got.append((bool(found), left.exists()))
    assert got == [(True, True), (False, False)]


ASK = """
for url, token in told["addresses"]:
    asker = context.socket(zmq.DEALER)
    asker.linger = 0
    asker.connect(url)
    where = {"function": "jaxnb.session.process_endpoint.where", "data": {}}
    content = {"token": token, "sent": time.monotonic(), **where}
    asker.send_multipart(signer.serialize(signer.msg("ask", content)))
    if asker.poll(told["milliseconds"]):
        _, frames = signer.feed_identities(asker.recv_multipart())
        found.append(len(signer.deserialize(frames)["buffers"]))
"""


def addresses_of(session: Session) -> list[tuple[str, str]]:
    life = session._life
    both = (life.sentinels._addresses, life.transport.direct._addresses)
    return [(each.url, each.token) for those in both for each in those.values()]


@pytest.mark.usefixtures("patient_answers")
def test_no_thread_of_a_process_answers_another(
    session: Session, nobody: pwd.struct_passwd
) -> None:
    told = {"addresses": addresses_of(session), "key": key_of(session)}
    mine, others = both(ASK, nobody, **told)
    assert len(mine) == 2 * session.num_processes
    assert others == []
    assert sorted(session.where()) == list(range(session.num_processes))


READ = """
import numpy
def look(what, read):
    with contextlib.suppress(OSError):
        if read():
            found.append(what)
target = numpy.zeros(told["size"], numpy.uint8)
def directly():
    peer_memory.read(told["pid"], (told["address"], target))
    return target.tobytes().decode() == told["secret"]
def by_file():
    with open(f"/proc/{told['pid']}/mem", "rb", 0) as file:
        file.seek(told["address"])
        return file.read(told["size"]).decode() == told["secret"]
look("memory", directly)
look("mem", by_file)
look("files", lambda: os.listdir(f"/proc/{told['pid']}/fd"))
look("environment", lambda: open(f"/proc/{told['pid']}/environ").read())
look("folder", lambda: os.listdir(told["folder"]))
for path in told["files"]:
    look("key", lambda: told["key"] in open(path, errors="replace").read())
for path in glob.glob("/dev/shm/*"):
    look(path, lambda: told["secret"] in open(path, errors="replace").read())
"""


def test_arrays_and_files_are_not_read(session: Session, nobody: pwd.struct_passwd) -> None:
    secret = "an array that is nobody else's"
    address = session.run(
        f"import ctypes\nkept = np.frombuffer({secret.encode()!r}, np.uint8).copy()\n"
        "kept.ctypes.data",
        ranks=[1],
    ).value
    folder = Path(session._life.cluster.directory)
    told = {
        "pid": session.processes[1].pid,
        "address": address[1] if isinstance(address, dict) else address,
        "size": len(secret),
        "secret": secret,
        "key": key_of(session),
        "folder": str(folder),
        "files": [str(p) for p in folder.rglob("*") if p.is_file()],
    }
    mine, others = both(READ, nobody, **told)
    assert {"memory", "mem", "files", "environment", "folder"} <= set(mine)
    assert others == []


CONNECT = """
for path in told["sockets"]:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(90)
        caller.connect(path)
        if told.get("asks"):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is quicker
                caller.send(b"????")
                assert caller.recv(100) == b""
        found.append(path)
"""

SUM = """
mesh = jax.make_mesh((jax.device_count(),), ('d',))
x = jax.make_array_from_callback((8,), NamedSharding(mesh, P('d')), lambda i: np.ones(8)[i])
float(jax.jit(jnp.sum)(x))
"""


def test_no_socket_is_reached(session: Session, nobody: pwd.struct_passwd) -> None:
    """JAX's coordination service and the conductor among them."""
    assert session.run(SUM).value == 8
    sockets = sockets_of(session)
    assert max(len(Path(path).name) for path in sockets) <= LONGEST_NAME
    mine, others = both(CONNECT, nobody, sockets=sockets)
    assert mine == sockets
    names = [path.rpartition("/")[2] for path in sockets]
    assert {"jax", "lock"} <= {name.partition("-")[0] for name in names}
    assert others == []
    assert session.run("float(jax.jit(jnp.sum)(x))").value == 8


@contextmanager
def opened(folder: Path) -> Iterator[None]:
    """Lets every user enter a folder and write to its sockets."""
    # The tests' own temporary folders above it too: a worker of pytest-xdist has one in another.
    above = [path for path in folder.parents if not path.stat().st_mode & stat.S_IXOTH]
    modes = {path: path.stat().st_mode for path in [*above, folder, *folder.iterdir()]}
    for path in modes:
        path.chmod(0o777 if path.is_socket() else 0o755)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


@pytest.mark.thorough
def test_an_open_folder_lets_nobody_ask_or_agree(
    session: Session, nobody: pwd.struct_passwd
) -> None:
    """A second lock: who connects is asked for its user id, before anything is spent on it."""
    assert session.run(SUM).value == 8
    folder = Path(session._life.cluster.directory)
    told = {"addresses": addresses_of(session), "key": key_of(session)}
    conductor = [path for path in sockets_of(session) if "/lock-" in path]
    with opened(folder):
        mine, others = both(ASK, nobody, **told)
        assert (len(mine), others) == (2 * session.num_processes, [])
        mine, others = both(CONNECT, nobody, sockets=conductor, asks=True)
        assert mine == others == conductor  # both are hung up on, the one for what it says
        assert eavesdropped(session, nobody) == []
    assert session.run("float(jax.jit(jnp.sum)(x))").value == 8
