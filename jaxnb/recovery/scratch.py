"""The directory for the variables of a group on their way to the next: one on each host."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from jaxnb.errors import SessionBrokenError
from jaxnb.launch.cluster import ProcessGroup
from jaxnb.recovery.files import MANIFEST


class Scratch:
    """Directories which the hosts' fork servers have made, all of the same path.

    The notebook's host has one too, if no process is on it.

    Args:
        cluster: Returns the group's processes of now, for the system.
        folder: Their path.
        hosts: The hosts of the processes; none if that is this host alone.

    Attributes:
        folder: See above.
        is_whole: All variables are in them.
    """

    def __init__(
        self, cluster: Callable[[], ProcessGroup], folder: Path, hosts: Iterable[str]
    ) -> None:
        self._cluster, self.folder, self.is_whole = cluster, folder, False
        self._hosts = [*dict.fromkeys(filter(None, hosts))]

    @property
    def lost(self) -> list[str]:
        """The hosts that are lost, with those that were there."""
        return [each for each in self._cluster().hosts.lost() if each in self._hosts]

    @property
    def on_hosts(self) -> str:
        """On which hosts they are, as the end of a clause; empty if that is this host alone."""
        names = [each for each in self._hosts if each not in self.lost]
        return f" on {' and '.join(names)}" if names else ""

    def complete(self, manifest: str) -> None:
        """Writes what tells of the files: even a close of the group leaves them from now on.

        Raises:
            NotEnoughMemoryError: It could not be written.
        """
        self._cluster().complete_scratch(MANIFEST, manifest)
        self.is_whole = True

    def hold(self, files: Mapping[int, Path]) -> list[int]:
        """Has new fork servers, if there are any, remove them when this process ends.

        The directories are those of the new processes from now on.

        Args:
            files: Process index to its file.

        Returns:
            The processes whose files are on the hosts that they run on.
        """
        return self._cluster().hold_scratch(self.folder, files)

    def end(self, *, keeps: bool = False) -> None:
        """Removes them, or leaves them for good: then nobody removes them at this process's end."""
        try:
            self._cluster().end_scratch(keeps=keeps)
        except SessionBrokenError:  # a server that was killed has left them
            if not keeps:
                shutil.rmtree(self.folder, ignore_errors=True)


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
    group = cluster()
    hosts = list(map(group.hosts.host_of, sizes))
    if all(map(group.remote_host_of, sizes)):
        hosts.append("this machine")
    found = Scratch(cluster, group.make_scratch(sizes, sharing), hosts)
    try:
        yield found
    except BaseException as error:
        found.end(keeps=found.is_whole)
        folder = found.folder
        if found.is_whole and str(folder) not in str(error):  # which tells of it else
            error.add_note(
                f"What was on {' and '.join(found.lost)} is lost. Variables of the other processes "
                f"are in {folder}{found.on_hosts}, which nothing can load without it: remove it."
                if found.lost
                else f"The variables are in {folder}{found.on_hosts}: in a group of this size "
                f"there (`%spmd_start`, unless there still is one), `%spmd_load {folder}` binds "
                "them. Then remove it."
            )
        raise
    found.end()
