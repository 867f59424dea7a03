"""From nothing to a group that has been checked: every process asked what it sees."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from jaxnb.cells.sinks import StderrNotices
from jaxnb.errors import SessionBrokenError, StartError
from jaxnb.labels import capitalized, plural, processes_label
from jaxnb.launch.cluster import ProcessGroup
from jaxnb.launch.deaths import Death, describe_death, last_lines
from jaxnb.launch.folder import OFF, direct_name, sentinel_name
from jaxnb.launch.job import QUEUED, Progress
from jaxnb.launch.placement import Placement
from jaxnb.lockstep import settings
from jaxnb.model.cells import CheckRequest, JoinRequest, RequestFailed
from jaxnb.model.group import Address, ProcessReport
from jaxnb.model.scripts import in_notebook
from jaxnb.options import StartOptions
from jaxnb.wire.client import Transport, wait_for
from jaxnb.wire.direct import Direct
from jaxnb.wire.messages import Exchange, Output, Reply
from jaxnb.wire.sentinels import Sentinels

WAITING = "waiting"
"""The stage in which somebody is waited for that does not come by itself."""


def untold(stage: str, detail: str) -> None:
    """Says nothing of a stage, but who is waited for that does not come by itself."""
    if stage == QUEUED:
        StderrNotices().notice(detail)
    if stage == WAITING:
        StderrNotices().notice(f"{detail}; new processes wait for each other")


MAX_SECONDS = 24 * 3600
"""A start may take no longer, whatever was asked for: XLA takes no infinite time-out."""

DEATH_SECONDS = 2.0
"""A death is known so much later at most than its first effects are seen."""

STOPPED_SECONDS = 2.0
"""So often it is looked whether a process is stopped, so that all wait for it."""

LINK_TEXT = (
    "\nProcesses connect to those of other hosts as they start. If a link was cut meanwhile, type "
    "`%spmd_start` to try again."
)

OUTPUT_SECONDS = 0.5
"""What a process has written comes a few milliseconds after its answer, or never."""


def jax_environment() -> dict[str, str]:
    """Returns what JAX reads of the environment when it is imported."""
    return {k: v for k, v in os.environ.items() if k.startswith(("JAX_", "XLA_"))}


class Starter:
    """Starts, and starts again, the processes of one group.

    Args:
        group: Where the processes live.
        options: What was asked for.
        placement: Who gets what.
        progress: Told of each stage: its name and a detail.
        deaths: Returns who has died so far; a start gives up on the first.
        on_output: Told of output that belongs to no running cell.
    """

    def __init__(
        self,
        group: ProcessGroup,
        options: StartOptions,
        placement: Placement,
        progress: Progress,
        deaths: Callable[[], Sequence[Death]],
        on_output: Callable[[Output], None],
    ) -> None:
        self._group = group
        self._options = options
        self._placement = placement
        self.progress = progress
        self._deaths = deaths
        self._on_output = on_output
        self._doing = "was starting"
        self._looked_at, self._stopped = time.monotonic(), ""
        self._deadline = time.monotonic() + min(options.timeout, MAX_SECONDS)

    def start(self, known: Transport | None) -> tuple[Transport, list[ProcessReport]]:
        """Starts processes, and services unless these are still running.

        Args:
            known: The connection to an ipyparallel controller that is still running, if one is.

        Returns:
            A transport bound to the processes, and what each process reported.

        Raises:
            StartError: With the reason; what had started is still there for the caller to end.
        """
        n = self._placement.num_processes
        if known is None:
            self.progress("starting", "ipyparallel controller and coordination service")
            controller, service = self._group.start_services(n)
            connection = self._await(controller, "the ipyparallel controller")
        else:
            self.progress("starting", "coordination service")
            service = self._group.start_service(n)
        address = self._await(service, "JAX's coordination service")
        self.progress("launching", plural(n, "process"))
        self._group.hosts.publish()
        try:
            self._group.start_processes(self._joins(address))
        except SessionBrokenError as error:
            raise StartError(str(error)) from error
        transport = known or Transport(connection["client"], self._on_output)
        try:
            self.progress("joining", plural(n, "process"))
            transport.wait_for(self._group.identities, self._deadline, self.check_alive)
            reports = self._check(transport)
            self._group.hosts.publish()
            return transport, reports
        except BaseException as error:
            if known is None:
                transport.close()
            if isinstance(error, TimeoutError):
                raise StartError(f"{error}{self._what_they_do()}.") from None
            raise

    @property
    def _programs_folder(self) -> str:
        """Where compiled programs are kept: on several hosts, for as long as the group lives."""
        kept = self._options.compile_cache
        if self._options.hosts and kept != OFF:
            return os.path.join(self._group.directory, "programs")
        return kept

    @property
    def _environment(self) -> dict[str, str]:
        """The variables that the user has given values."""
        given = (each.partition("=") for each in self._options.env)
        return {name: value for name, equals, value in given if equals}

    def _joins(self, address: str) -> list[JoinRequest]:
        placement = self._placement
        return [
            JoinRequest(
                process_index=index,
                num_processes=placement.num_processes,
                coordinator_address=address,
                platform=placement.platform,
                devices_per_process=placement.devices_per_process,
                bind_host=self._group.hosts.address_of(index),
                socket_folder=self._group.directory,
                collectives=self._options.collectives,
                in_mpi=self._options.launcher == "mpi",
                programs_folder=self._programs_folder,
                bare=self._options.bare,
                environment={**self._environment, **placement.environments[index]},
                arguments=sys.argv,
                timeout_seconds=max(1, int(min(self._options.timeout, MAX_SECONDS))),
            )
            for index in range(placement.num_processes)
        ]

    def _check(self, transport: Transport) -> list[ProcessReport]:
        self.progress("checking", "a psum over all devices")
        while True:
            reports = self._reports(transport)
            unheard = transport.unheard(OUTPUT_SECONDS)
            if not unheard:
                break
            if time.monotonic() > self._deadline:
                raise StartError(f"No output from {processes_label(unheard)} has arrived.")
        verify(reports, self._placement)
        reports = settings.judged(reports)
        refusal = settings.why_not_checked(reports, settings.TO_START)
        if refusal and self._options.check == "strict":
            raise StartError(refusal)
        return reports

    def _reports(self, transport: Transport) -> list[ProcessReport]:
        """Asks all processes what they see.

        Raises:
            StartError: A process could not do it, in time or at all; the message names it.
        """
        everyone = range(self._placement.num_processes)
        exchange, answers = Exchange(), dict[int, Any]()
        for index in everyone:
            transport.send_to(exchange, index, CheckRequest())
        while len(answers) < len(everyone):
            self.check_alive()
            if time.monotonic() > self._deadline:
                missing = sorted(set(everyone) - set(answers))
                raise StartError(
                    f"Processes {missing} did not check within {self._options.timeout:g} s"
                    f"{self._what_they_do()}."
                )
            event = exchange.get(0.1)
            if not isinstance(event, Reply):
                continue
            index, answer = event.process_index, event.answer
            if isinstance(answer, RequestFailed):
                error = answer.error
                then = in_notebook(LINK_TEXT) if self._group.hosts.names() else ""
                raise StartError(
                    f"Process {index} could not check: {error}\n{error.traceback}{then}"
                )
            if isinstance(answer, BaseException):
                self._wait_for_news()  # of how it died, which says more
                raise StartError(f"Process {index}: {answer}")
            answers[index] = answer
        return [answers[i] for i in everyone]

    def _what_they_do(self) -> str:
        """Returns what the processes do, if not all the same: the others wait for the odd one."""
        doing: dict[str, list[int]] = {}
        for index, look in sorted(self._group.look().items()):
            doing.setdefault(look.state, []).append(index)
        if len(doing) < 2:
            return ""
        parts = [
            f"{processes_label(who)} {'is' if len(who) == 1 else 'are'} {what}"
            for what, who in doing.items()
        ]
        return f": {', '.join(parts)}"

    def _wait_for_news(self) -> None:
        """Waits a moment for a death to be known; raises what :meth:`check_alive` raises."""
        deadline = time.monotonic() + DEATH_SECONDS
        while time.monotonic() < deadline:
            self.check_alive()
            Exchange().get(0.01)

    def _await(self, future: Any, what: str) -> Any:
        while not wait_for(future, 0.1):
            self.check_alive()
            if time.monotonic() > self._deadline:
                seconds = f"{self._options.timeout:g} s"
                option = in_notebook(" (`--timeout`)")
                raise StartError(f"{what} did not start within {seconds}{option}.")
        error = future.exception()
        if error is not None:
            raise StartError(f"{capitalized(what)} could not be started.\n{error}")
        return future.result()

    def check_alive(self) -> None:
        """Gives up if anything has died; tells of who is stopped.

        Raises:
            StartError: It names the process and shows its last lines.
        """
        deaths = self._deaths()
        if deaths:
            raise StartError(
                describe_death(deaths[0], self._placement.num_processes)
                + f" while the group {self._doing}."
                + last_lines(deaths[0])
            )
        if time.monotonic() - self._looked_at > STOPPED_SECONDS:
            self._looked_at = time.monotonic()
            stopped = self._group.stopped_text(range(self._placement.num_processes))
            if stopped and stopped != self._stopped:
                self.progress(WAITING, stopped)
            self._stopped = stopped


def connections(
    key: bytes, folder: str, reports: Sequence[ProcessReport], notice: Callable[[str], None]
) -> tuple[Sentinels, Direct]:
    """Returns what reaches processes past the controller.

    Args:
        key: The cluster's key.
        folder: The group's, here: it has sockets of the processes of all hosts.
        reports: What the processes said when they joined.
        notice: Shows the user a sentence.
    """

    def addresses(name: Callable[[int, int], str]) -> dict[int, Address]:
        return {
            index: Address(f"ipc://{folder}/{name(index, each.pid)}", each.token)
            for index, each in enumerate(reports)
        }

    return Sentinels(key, addresses(sentinel_name), notice), Direct(key, addresses(direct_name))


def verify(reports: Sequence[ProcessReport], placement: Placement) -> None:
    """Checks that all processes see one and the same group.

    Raises:
        StartError: Some see something else; the message says who sees what.
    """
    n = placement.num_processes
    devices = n * placement.devices_per_process
    for index, report in enumerate(reports):
        seen = {
            "its process index": (report.process_index, index),
            "processes": (report.num_processes, n),
            "local devices": (len(report.local_devices), placement.devices_per_process),
            "global devices": (report.num_global_devices, devices),
            "the sum of a one from every device": (report.psum, float(devices)),
            "the version of JAX": (report.jax_version, reports[0].jax_version),
        }
        for what, (got, wanted) in seen.items():
            if got != wanted:
                raise StartError(
                    f"Process {index} of {n} (pid {report.pid} on {report.host}) sees "
                    f"{got} for {what}; it should be {wanted}."
                )
