"""The folder on this host for variables on their way from one group's processes to the next's."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
from pathlib import Path

from jaxnb.errors import NotEnoughMemoryError
from jaxnb.labels import format_bytes
from jaxnb.launch.folder import OWNER, for_this_user, mark, write_text
from jaxnb.launch.host import available_bytes


class Scratch:
    """Owns the folder; there is one at most.

    Args:
        owner_pid: The process for which it is of use: once that has ended, `jaxnb clean` removes
            it, if nobody else has.
    """

    def __init__(self, owner_pid: int) -> None:
        self._owner_pid = owner_pid
        self._folder, self._is_whole = "", False

    def make(self, nbytes: int, name: str, place: str = "", lacking: str = "") -> tuple[str, str]:
        """Makes the folder, which only this user can enter: in memory if there is room.

        The one before it is removed, if there still is one. If another server of the group has made
        it, the two share it: they are on one host, or their hosts share what it is in.

        Args:
            nbytes: The size of the variables.
            name: Its name, which nobody can guess.
            place: Where it must be, whatever room there is in memory.
            lacking: The hosts that have no room in memory, for which it must be there.

        Returns:
            Its path, and its mark: servers that share it have the same.

        Raises:
            NotEnoughMemoryError: There is no room for them.
        """
        self.end()
        parent = _with_room(nbytes, place, lacking)
        self._folder = str(parent / name)
        try:
            with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=parent) as made:
                marked = os.path.join(made, name)
                os.mkdir(marked, 0o700)
                mark(marked, self._owner_pid, self._folder)
                try:
                    os.rename(marked, self._folder)
                except OSError as error:
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                        raise
            return self._folder, os.fsdecode(Path(self._folder, OWNER).read_bytes())
        except OSError as error:
            raise self._no_room(error) from None

    def read(self, name: str, start: int, size: int) -> bytes:
        """Returns so many bytes of a file in the folder from a place on; fewer at its end."""
        with open(os.path.join(self._folder, name), "rb") as file:
            file.seek(start)
            return file.read(size)

    def append(self, name: str, data: bytes) -> None:
        """Writes bytes to the end of a file in the folder, which need not be there.

        Raises:
            NotEnoughMemoryError: There is no room for them.
        """
        try:
            with open(os.path.join(self._folder, name), "ab", opener=for_this_user) as file:
                file.write(data)
        except OSError as error:
            raise self._no_room(error) from None

    def complete(self, name: str, text: str) -> None:
        """Writes the file that comes last: all variables are there from now on.

        Raises:
            NotEnoughMemoryError: It could not be written.
        """
        try:
            write_text(os.path.join(self._folder, name), text)
        except FileExistsError:
            pass  # a server that shares the folder has written it
        except OSError as error:
            raise self._no_room(error) from None
        self._is_whole = True

    def _no_room(self, error: OSError) -> NotEnoughMemoryError:
        return NotEnoughMemoryError(
            f"The variables of the processes on {socket.gethostname()} could not be written to "
            f"{self._folder} ({error.strerror}). {WITHOUT_ROOM}"
        )

    def hold(self, folder: str) -> None:
        """Takes over a folder that has all variables, which a server before this one has made."""
        self._folder, self._is_whole = folder, True

    def end(self, *, keeps: bool = False) -> None:
        """Removes the folder, if there is one.

        Args:
            keeps: If all variables are there, it is left as it is, and forgotten.
        """
        folder, keeps = self._folder, keeps and self._is_whole
        self._folder, self._is_whole = "", False
        if folder and not keeps:
            shutil.rmtree(folder, ignore_errors=True)


MEMORY = Path("/dev/shm")
"""Where files are in memory."""

WITHOUT_ROOM = (
    "Nothing was changed. Make room, or delete variables, and type the same again. What you need "
    "can be saved to another disk (`%spmd_save DIR NAMES`). If a process has died, no cell can "
    "delete and nothing can be saved, but `%spmd_pull NAMES` works."
)
"""What is said where there is no room for a second copy."""


def _with_room(nbytes: int, only: str, lacking: str) -> Path:
    """Returns where there is room for a second copy of variables: in memory, or on the disk."""
    disk = Path(only or tempfile.gettempdir())
    if only and not disk.is_dir():
        raise NotEnoughMemoryError(
            f"{lacking} has no room for a second copy of the variables in {MEMORY}, and "
            f"{socket.gethostname()} has no folder {disk}, where {lacking} has room. Make that "
            f"folder there. {WITHOUT_ROOM}"
        )
    rooms = {disk: shutil.disk_usage(disk).free if disk.is_dir() else 0}
    if os.access(MEMORY, os.W_OK) and not only:
        rooms = {MEMORY: min(shutil.disk_usage(MEMORY).free, available_bytes())} | rooms
    for place, room in rooms.items():
        if nbytes < room:
            return place
    told = ", ".join(f"{format_bytes(room)} in {place}" for place, room in rooms.items())
    raise NotEnoughMemoryError(
        f"The variables of the processes on {socket.gethostname()} take {format_bytes(nbytes)}, "
        f"and there is no room for a second copy: {told}. {WITHOUT_ROOM}"
    )
