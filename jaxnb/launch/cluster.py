"""A group's programs: started, watched and ended together."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from jaxnb.errors import SessionBrokenError, StartError
from jaxnb.launch.deaths import Death
from jaxnb.launch.forkclient import ForkServerClient, take
from jaxnb.launch.forwarding import forwards_of
from jaxnb.launch.host import Look, continue_command, stopped_text
from jaxnb.launch.hosts import Agents
from jaxnb.launch.job import Job
from jaxnb.launch.member import is_here
from jaxnb.launch.placement import parse_hosts
from jaxnb.launch.scratch import MEMORY
from jaxnb.launch.slurm import SRUN
from jaxnb.launch.ssh import SSH
from jaxnb.model.cells import JoinRequest, StreamChunk
from jaxnb.model.group import HostFacts
from jaxnb.options import StartOptions, launcher_of, submits_job

FACTS_SECONDS = 30.0
"""So long the fork server may take to start, import, and ask the driver for its GPUs."""

FORK_SECONDS = 60.0
ANSWER_SECONDS = 10.0
LOOK_SECONDS = 1.0
"""So long its answers may take: to fork processes, to signal them, and to say what they do."""

SCRATCH_SECONDS = 60.0
"""So long it may take to remove variables from memory or the disk."""

STOP_GRACE_SECONDS = 2.0
"""So long processes may take to end after SIGTERM; at the group's end, half of that."""


class ProcessGroup:
    """The operating system's side of a group: processes, no JAX. The fork server has them.

    Args:
        options: What was asked for: on which hosts, and how they are launched there.
        on_death: Called from another thread for each unexpected :class:`Death`.
        on_output: Called likewise with what the C code of a process (XLA, NCCL) wrote to its
            standard output or error.
        on_notice: Called likewise with what is to be known of a job that the group runs in.

    Attributes:
        hosts: What starts and ends processes on its hosts.
        directory: The group's folder, which no other user can enter: sockets, keys and logs.
        replaces_processes: New processes can take the place of others; else all end and start
            together.
    """

    def __init__(
        self,
        options: StartOptions,
        on_death: Callable[[Death], None],
        on_output: Callable[[StreamChunk], None],
        on_notice: Callable[[str], None],
    ) -> None:
        self._on_death = on_death
        self._on_output = on_output
        self._ending: Collection[str] = ()  # the roles of those that are being ended
        self._is_closing = False
        self._id = secrets.token_hex(4)
        self._connection_info = self.service_address = ""
        self._generation = 0
        self._helpers: dict[str, int] = {}
        self.pids: dict[int, int] = {}
        self.identities: dict[int, str] = {}
        self.hosts: ForkServerClient | Agents
        launcher, self._lost_after = launcher_of(options), options.lost_after
        self.replaces_processes = options.launcher != "mpi"
        if options.hosts or submits_job(options):
            hosts = [each.name for each in parse_hosts(options.hosts)] if options.hosts else []
            follows = options.launcher == "slurm" or not hosts
            names = [each.partition("=")[0] for each in options.env]
            self.hosts = Agents(
                hosts,
                self._on_fork_event,
                launcher=launcher,
                names=names,
                lost_after=options.lost_after,
                remote_shell=SRUN if options.launcher == "slurm" else SSH,
                make_job=partial(Job, options, on_notice=on_notice) if follows else None,
            )
        else:
            self.hosts = take(launcher, self._on_fork_event)
        self.directory = self.hosts.directory

    # ------------------------------------------------------------------ its hosts

    def remote_host_of(self, process_index: int) -> str:
        """Returns the host that a process runs on; empty if that is the notebook's own."""
        host = self.hosts.host_of(process_index)
        return "" if is_here(host) else host

    def facts(self, *, gpus: bool) -> tuple[HostFacts, ...]:
        """Returns what there is on each host of the group.

        Args:
            gpus: Ask for GPUs too, as ``CUDA_VISIBLE_DEVICES`` of now names them.

        Raises:
            StartError: A host gave no answer.
        """
        try:
            answer = self._ask("facts", FACTS_SECONDS, gpus=gpus, environment=dict(os.environ))
        except SessionBrokenError as error:
            raise StartError(str(error)) from None
        return tuple(map(HostFacts.from_plain, answer["facts"]))

    def _ask(self, op: str, seconds: float = ANSWER_SECONDS, **arguments: Any) -> dict[str, Any]:
        """Asks the fork server, and waits for its answer.

        Raises:
            SessionBrokenError: It has ended, or has not answered in time.
        """
        answer = self.hosts.request(op, **arguments)
        try:
            return dict(answer.result(seconds))
        except TimeoutError:
            raise SessionBrokenError(self.hosts.silence(seconds)) from None

    # ------------------------------------------------------------------ starting

    def start_services(self, num_processes: int) -> tuple[Future[Any], Future[str]]:
        """Starts the ipyparallel controller and JAX's coordination service.

        Returns:
            Futures of the controller's connection information and the service's address.
        """
        controller = self.hosts.request("controller", self._read_controller, cluster_id=self._id)
        return controller, self.start_service(num_processes)

    def start_service(self, num_processes: int) -> Future[str]:
        """Starts JAX's coordination service, in a process of its own.

        Returns:
            A future of its address.
        """
        return self.hosts.request("service", self._read_service, num_processes=num_processes)

    def _read_controller(self, answer: dict[str, Any]) -> Any:
        self._helpers["controller"] = answer["pid"]
        connection = json.loads(answer["line"])
        self._connection_info = json.dumps(connection["engine"])
        return connection

    def _read_service(self, answer: dict[str, Any]) -> str:
        self._helpers["service"] = answer["pid"]
        self.service_address = answer["line"].strip()
        return self.service_address

    def start_processes(self, joins: list[JoinRequest]) -> None:
        """Starts the processes of the group, which join; :attr:`identities` names them."""
        self._generation += 1
        self.identities = {
            join.process_index: f"{self._id}-{self._generation}-{join.process_index}"
            for join in joins
        }
        starts = [
            {
                "environment": {**os.environ, **join.environment},
                "connection_info": self._connection_info,
                "identity": self.identities[join.process_index],
                "join": asdict(join),
                "directory": os.getcwd(),
            }
            for join in joins
        ]
        self.pids = dict(self._ask("engines", FORK_SECONDS, starts=starts)["pids"])

    # ------------------------------------------------------------------ signals and ends

    def interrupt(self, process_indices: list[int]) -> None:
        """Interrupts processes with the programs that they have started, as a terminal does."""
        self._ask("signal", processes=process_indices, interrupts=True)

    def signal(self, process_indices: list[int], sig: int) -> list[int]:
        """Sends a signal to processes; those that have ended are left out.

        Returns:
            Those whose hosts are not silent: nothing reaches the others.
        """
        self._ask("signal", processes=process_indices, signal=int(sig))
        silent = self.silent_processes()
        return [index for index in process_indices if index not in silent]

    def look(self) -> dict[int, Look]:
        """Returns what each living process does."""
        try:
            looks = self._ask("look", LOOK_SECONDS).get("looks", [])  # of no host that is left
        except SessionBrokenError:  # all have ended with the fork server, or it is stopped itself
            return {}
        return {index: Look(*look) for index, look in looks}

    def stopped(self, process_indices: Iterable[int]) -> dict[int, int]:
        """Returns those of the processes that are stopped, by SIGSTOP say, with their ids."""
        stopped = {index for index, look in self.look().items() if look.state == "stopped"}
        pids = self.pids  # none while they are being replaced
        return {i: pids[i] for i in process_indices if i in stopped and i in pids}

    def commands_to_continue(self, process_indices: Iterable[int]) -> dict[int, str]:
        """Returns which of the processes are stopped, and what to type so that each goes on."""
        stopped = self.stopped(process_indices)
        return {i: continue_command([pid], self._on_host_of(i)) for i, pid in stopped.items()}

    def absent(self, process_indices: Sequence[int]) -> dict[int, str]:
        """Returns which of the processes are stopped, or on a silent host, as a clause each."""
        stopped = self.commands_to_continue(process_indices)
        texts = {i: f"stopped, `{command}` lets it go on" for i, command in stopped.items()}
        silent = self.hosts.silent(process_indices)
        for index in process_indices:
            if silent and (host := self.hosts.host_of(index)) in silent:
                texts[index] = silent[host]
        return texts

    def stopped_text(self, process_indices: Iterable[int]) -> str:
        """Returns which of the processes, or of their hosts, are stopped; empty if none is."""
        indices = tuple(process_indices)
        stopped = self.stopped(indices)
        text = stopped_text(stopped, {index: self._on_host_of(index) for index in stopped})
        return ", and ".join(filter(None, [text, self.silence_text(indices)]))

    def silence_text(self, process_indices: Sequence[int]) -> str:
        """Returns which hosts of processes do not answer, as a clause; empty if all do."""
        return ", and ".join(
            f"host {clause}; it is given up after {self._lost_after:g}"
            for clause in self.hosts.silent(process_indices).values()
        )

    def silent_processes(self) -> list[int]:
        """Returns the processes on hosts that do not answer."""
        silent = self.hosts.silent([*self.pids])
        return [index for index in self.pids if silent and self.hosts.host_of(index) in silent]

    def _on_host_of(self, process_index: int) -> str:
        """Returns what to type before a command to run it beside a process; or nothing."""
        host = self.remote_host_of(process_index)
        return self.hosts.by_hand(host) if host else ""

    def stop_processes(self) -> None:
        """Ends the processes and the coordination service; the controller stays."""
        roles = ["engine", "service"]
        self._ending = {*roles, *forwards_of(roles)}
        self._stop("engine", STOP_GRACE_SECONDS)
        # Not before: XLA aborts every process that loses the service, and their exit handlers
        # would not run.
        self._stop("service", 0)
        self.pids, self._ending = {}, ()

    def _stop(self, role: str, grace_seconds: float) -> None:
        seconds = ANSWER_SECONDS + grace_seconds
        asked: dict[str, Any] = {"roles": [role], "grace_seconds": grace_seconds}
        try:
            self._ask("stop", seconds, **asked)
        except SessionBrokenError:
            if not self.silent_processes():
                raise
            self._ask("stop", seconds, **asked)  # who is silent is given up

    def close(self) -> str:
        """Ends everything that this object has started, and removes its folder.

        Guarantees that no process of the group is alive when it returns, but for what it returns.
        If it is interrupted, another call does what is left; after that calls do nothing.

        Returns:
            What may be left, as sentences; empty if nothing is.
        """
        self._is_closing = True
        try:
            self._stop("engine", STOP_GRACE_SECONDS / 2)
        except (SessionBrokenError, StartError) as error:
            logging.getLogger("jaxnb").debug("processes could not be told to end: %s", error)
        try:
            self.hosts.close()
        except SessionBrokenError as error:
            return str(error)
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
        return ""

    def helper_pids(self) -> dict[str, int]:
        """Returns the processes that serve the group: what they are to their process ids."""
        return {**self._helpers, "fork server": self.hosts.pid}

    # ------------------------------------------------------------------ variables on their way

    def make_scratch(self, sizes: Mapping[int, int], sharing: Collection[str] = ()) -> Path:
        """Makes a folder for the variables of processes: one of the same path on each host.

        They are removed by :meth:`end_scratch`, by another call of this, when the group is closed
        before :meth:`complete_scratch`, and in any case when this process ends.

        Args:
            sizes: Process index to the size of its variables.
            sharing: The hosts that are to get copies of all of them.

        Returns:
            Their path.

        Raises:
            NotEnoughMemoryError: A host has no room for them.
        """
        needed = {**sizes}
        for host in sharing:
            own = [index for index in sizes if self.hosts.host_of(index) == host]
            needed[own[0]] += sum(sizes.values()) - sum(sizes[index] for index in own)
        asked: dict[str, Any] = {
            "sizes": [*needed.items()],
            "name": f"jaxnb-{secrets.token_hex(8)}",
        }
        made = self._ask("scratch", place="", lacking="", **asked)["folders"]
        if len({folder for folder, _ in made}) > 1:  # some host has no room in memory
            on_disk = [(Path(folder).parent, host) for folder, host in made
                       if Path(folder).parent != MEMORY]  # fmt: skip
            place, lacking = on_disk[0]
            made = self._ask("scratch", place=str(place), lacking=lacking, **asked)["folders"]
        return Path(made[0][0])

    def complete_scratch(self, name: str, text: str) -> None:
        """Writes a last file into each folder; to close the group leaves them from now on.

        Raises:
            NotEnoughMemoryError: A host has no room for it.
        """
        self._ask("scratch_complete", name=name, text=text)

    def hold_scratch(self, folder: Path, files: Mapping[int, Path]) -> list[int]:
        """Takes over complete folders, be they from a group before this one.

        Args:
            folder: Their path.
            files: Process index to its file.

        Returns:
            The processes whose files are on the hosts that they run on.
        """
        asked = [(index, str(path)) for index, path in files.items()]
        return list(self._ask("scratch_hold", folder=str(folder), files=asked)["there"])

    def end_scratch(self, *, keeps: bool) -> None:
        """Removes the folders, or leaves them for good if they are complete."""
        self._ask("scratch_end", SCRATCH_SECONDS, keeps=keeps)

    # ------------------------------------------------------------------ deaths

    def _on_fork_event(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "text":
            if self.pids.get(event["index"]) == event["pid"]:
                self._on_output(StreamChunk(event["index"], "stderr", event["text"]))
        elif kind != "press" and not self._is_closing and event.get("role") not in self._ending:
            if kind == "ended":
                server = self.hosts
                own = {"pid": server.pid, "tail": server.last_lines()}  # of several hosts it says
                event = {"role": "fork server", "index": -1, **own, **event}
            self._on_death(Death(**event))
