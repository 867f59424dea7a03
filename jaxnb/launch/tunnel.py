"""The tunnel: a Unix socket in one host's folder is reached under its name in another host's.

On each host a *door* listens over TCP, and connects to a Unix socket in its folder whoever holds
the group's certificate. *Forwards* listen on Unix sockets in their own folder, and carry each
connection to the door of the host that has the socket of that name. Both ends show the same
certificate and accept no other, over TLS 1.3: nobody else reads, changes or begins a connection.

Who connects to a door sends a line with a socket's name. The door answers with a line, ``ok`` or
why not; then bytes go both ways until both sides have ended. Where the connection between the hosts
breaks, both sides are ended.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NoReturn

from jaxnb.errors import StartError
from jaxnb.launch import lifeline
from jaxnb.launch.tunnel_loop import WRITE, Opening, Plain, Secured, Steps, Tunnel
from jaxnb.lockstep.connections import refuse_other_users

MOST_OPENING = 256
"""So many connections may not have shown a door the certificate; the oldest is ended then."""

AGENTS = "agents"
"""The socket in the notebook's folder on which it waits for agents that connect to it."""

DIAL_BACK = "JAXNB_DIAL_BACK"
"""The variable by which such an agent finds it: addresses, port and the group's certificate."""

_BACKLOG = 1024
_OK = "ok"
_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME


def make_certificate() -> str:
    """Makes the certificate of a group.

    The key is on no command line and in no file. Until when it is valid is never checked: clocks of
    hosts differ, and a group forgets its certificate at its end.

    Returns:
        Key and certificate, as PEM.

    Raises:
        StartError: There is no ``openssl``, or it has failed.
    """
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout -"
    # Not the system's configuration, which may be missing or ask for anything.
    command += " -subj /CN=jaxnb -days 3650 -config /dev/stdin"
    try:
        done = subprocess.run(
            command.split(),
            input="[req]\ndistinguished_name = name\n[name]\n",
            capture_output=True,
            text=True,
            check=True,
        )
    except FileNotFoundError:
        raise StartError(
            "A group on several hosts needs the program `openssl`, for the certificate of its "
            "connections. Nothing was started. Install it on this host: `apt-get install openssl`, "
            "`dnf install openssl` or `conda install openssl`."
        ) from None
    except subprocess.CalledProcessError as error:
        raise StartError(
            "`openssl` could not make the certificate of the group's connections. Nothing was "
            f"started. It says:\n{error.stderr}"
        ) from None
    return done.stdout


def _context(certificate: str, folder: str, protocol: int) -> ssl.SSLContext:
    """Returns what accepts a certificate and no other, and shows it."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate says more
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= _NO_CHECK_TIME
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    try:  # the module reads a key from a file only
        with _file(folder) as file:
            file.write(certificate)
            file.flush()
            path = file.name if isinstance(file.name, str) else f"/proc/self/fd/{file.name}"
            context.load_cert_chain(path)
            context.load_verify_locations(path)
    except OSError as error:
        raise SystemExit(f"The tunnel between the hosts cannot start: {error}.") from None
    return context


def _file(folder: str) -> Any:
    """Returns a file for a moment: in memory, where the system has such, as a disk may be full."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("certificate"), "w")
    return tempfile.NamedTemporaryFile("w", dir=folder)


def door(
    cluster_dir: str,
    address: str,
    certificate: str,
    ready_fd: int,
    *,
    removes: bool = False,
    most: int = sys.maxsize,
) -> NoReturn:
    """Runs a door until this process is ended; writes its port to ``ready_fd``.

    Args:
        cluster_dir: The folder of the sockets that it leads to.
        address: Where it listens.
        certificate: What :func:`make_certificate` has returned.
        ready_fd: A pipe.
        removes: Remove the folder if the parent is killed, which else does that.
        most: After so many connections nothing listens any more.
    """
    if removes:

        def remove(*_: object) -> NoReturn:
            shutil.rmtree(cluster_dir, ignore_errors=True)
            os._exit(1)

        signal.signal(signal.SIGHUP, remove)
        lifeline.die_with_parent(os.getppid(), signal.SIGHUP)
    context = _context(certificate, cluster_dir, ssl.PROTOCOL_TLS_SERVER)

    def admit(
        accepted: socket.socket, sockets: contextlib.ExitStack
    ) -> Steps[tuple[Plain, Secured]]:
        far = Secured(accepted, context)
        yield from far.shake_hands()
        name = yield from far.line()
        service = sockets.enter_context(socket.socket(socket.AF_UNIX))
        service.setblocking(False)
        try:
            if not name or "/" in name or ".." in name or "\0" in name:
                raise PermissionError("it is not a name in the group's folder")
            service.connect(os.path.join(cluster_dir, name))
        except OSError as error:
            far.write_line(f"{name!r} cannot be reached: {error}")
            raise
        far.write_line(_OK)
        admitted.append(name)
        if len(admitted) == most:
            tunnel.stop_listening(listener)
        return Plain(service), far

    admitted: list[str] = []
    family, *_, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    try:
        listener = socket.create_server(where, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SystemExit(
            f"The tunnel between the hosts cannot listen on {address}: {error}. Name an address "
            "of this host."
        ) from None
    tunnel = Tunnel(MOST_OPENING)
    tunnel.listen(listener, admit)
    _serve(tunnel, ready_fd, str(listener.getsockname()[1]))


def forwards(
    cluster_dir: str, routes: Sequence[tuple[str, str, int]], certificate: str, ready_fd: int
) -> NoReturn:
    """Runs forwards until this process is ended; writes a line to ``ready_fd`` once they listen.

    A connection that cannot be carried is closed.

    Args:
        cluster_dir: The folder in which they listen.
        routes: Names of sockets, each with address and port of the door that leads to it.
        certificate: What :func:`make_certificate` has returned.
        ready_fd: A pipe.
    """
    os.umask(0o077)
    context = _context(certificate, cluster_dir, ssl.PROTOCOL_TLS_CLIENT)
    tunnel = Tunnel()
    for name, address, port in routes:
        path = os.path.join(cluster_dir, name)
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(path)
        except OSError as error:
            raise SystemExit(f"The tunnel between the hosts: {path}: {error}.") from None
        listener.listen(_BACKLOG)
        family, *_, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        tunnel.listen(listener, _dialling(name, family, where, context))
    _serve(tunnel, ready_fd, "ready")


def dial(connection: socket.socket, address: str, port: int, certificate: str) -> NoReturn:
    """Carries a connection of this host to :data:`AGENTS` on the notebook's.

    Runs until a signal ends this process.

    Args:
        connection: One end of a pair of sockets; it is closed where the connection breaks.
        address: Of the notebook's host.
        port: Of the door there.
        certificate: What :func:`make_certificate` has returned.
    """
    context = _context(certificate, tempfile.gettempdir(), ssl.PROTOCOL_TLS_CLIENT)
    family, *_, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    tunnel = Tunnel()
    tunnel.begin(connection, _dialling(AGENTS, family, where, context))
    tunnel.serve()


def _dialling(name: str, family: int, where: Any, context: ssl.SSLContext) -> Opening:
    def dial(
        accepted: socket.socket, sockets: contextlib.ExitStack
    ) -> Steps[tuple[Plain, Secured]]:
        refuse_other_users(accepted)
        connection = sockets.enter_context(socket.socket(family, socket.SOCK_STREAM))
        connection.setblocking(False)
        error = connection.connect_ex(where)
        if error == errno.EINPROGRESS:
            yield {connection.fileno(): WRITE}
            error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, f"{where[0]} port {where[1]}: {os.strerror(error)}")
        far = Secured(connection, context)
        yield from far.shake_hands()
        far.write_line(name)
        answer = yield from far.line()
        if answer != _OK:
            raise ConnectionRefusedError(answer)
        return Plain(accepted), far

    return dial


def _serve(tunnel: Tunnel, ready_fd: int, line: str) -> NoReturn:
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # two for a connection
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with os.fdopen(ready_fd, "w") as stream:
        stream.write(f"{line}\n")
    tunnel.serve()
