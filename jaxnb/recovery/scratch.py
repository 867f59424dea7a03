"""Directories for the variables of a group on their way to the next: one on each host."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from jaxnb.errors import SessionBrokenError
from jaxnb.launch.cluster import ProcessGroup
from jaxnb.recovery.files import MANIFEST


class Scratch:
    """Directories which the hosts' fork servers have made.

    Args:
        cluster: Returns the group's processes of now, for the system.
        folders: Process index to the directory on its host.

    Attributes:
        folders: See above.
        first: The directory on the notebook's host; if no process is on it, the first process's.
        is_whole: All variables are in them.
    """

    def __init__(self, cluster: Callable[[], ProcessGroup], folders: Mapping[int, Path]) -> None:
        self._cluster, self.folders, self.is_whole = cluster, folders, False
        group = cluster()
        self._on_hosts = {group.host_of(i): folder for i, folder in folders.items()}
        here = (folder for i, folder in folders.items() if not group.remote_host_of(i))
        self.first = next(here, next(iter(folders.values())))

    def complete(self, manifest: str) -> None:
        """Writes what tells of the files: even a close of the group leaves them from now on.

        Raises:
            NotEnoughMemoryError: It could not be written.
        """
        self._cluster().complete_scratch(MANIFEST, manifest)
        self.is_whole = True

    def hold(self) -> None:
        """Has new fork servers, if there are any, remove them when this process ends.

        The directories are those of the new processes from now on.
        """
        group = self._cluster()
        self.folders = {i: self._on_hosts[group.host_of(i)] for i in group.pids}
        group.hold_scratch(self.folders)

    def end(self, *, keeps: bool = False) -> None:
        """Removes them, or leaves them for good: then nobody removes them at this process's end."""
        try:
            self._cluster().end_scratch(keeps=keeps)
        except SessionBrokenError:  # a server that was killed has left them
            for folder in {*self.folders.values()} if not keeps else ():
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def scratch(
    cluster: Callable[[], ProcessGroup], sizes: Mapping[int, int], sharing: Collection[str] = ()
) -> Iterator[Scratch]:
    """Yields directories for variables on their way: in memory, where there is room.

    They are removed if what is done with them succeeds, or does not complete them. Else they are
    left, and a note says where they are. They are removed when this process ends meanwhile.

    Args:
        cluster: Returns the group's processes of now, for the system.
        sizes: Process index to the size of its variables.
        sharing: The hosts that the variables of all are copied to.

    Raises:
        NotEnoughMemoryError: There is no room for them.
    """
    found = Scratch(cluster, cluster().make_scratch(sizes, sharing))
    try:
        yield found
    except BaseException as error:
        found.end(keeps=found.is_whole)
        folder = found.first
        if found.is_whole and str(folder) not in str(error):  # which tells of it else
            error.add_note(
                f"The variables are in {folder}: in a group of this size (`%spmd_start`, unless "
                f"there still is one), `%spmd_load {folder}` binds them. Then remove it."
            )
        raise
    found.end()
