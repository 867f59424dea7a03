"""Parses the command line."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jaxnb._version import __version__

_RUN_EPILOG = """\
The first argument after SCRIPT that is not an option above, and all that follow, are the
script's own; so is everything after `--`. In them {process_index} and {num_processes} are
replaced on each process.

  jaxnb run train.py -n 4 --lr 0.1
  jaxnb run -m pkg.train -n 4
  jaxnb run toy.py -n 4 --devices-per-process 2 {process_index} {num_processes}
  jaxnb run study.ipynb --output done.ipynb -p steps 100
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    _open_what_is_closed()
    parser = make_parser()
    words = list(sys.argv[1:] if arguments is None else arguments)
    given, own = _split(words, parser.run.options) if words[:1] == ["run"] else (words, [])
    asked = parser.parse_args(given)
    try:
        match asked.command:
            case "run":
                return _run(parser, asked, given, own)
            case "doctor":
                from jaxnb.cli.doctor import doctor

                return doctor(as_json=asked.json)
            case "clean":
                from jaxnb.cli.doctor import clean

                return clean(
                    yes=asked.yes, dry_run=asked.dry_run, compile_cache=asked.compile_cache
                )
            case "course":
                return _course(asked)
        parser.print_help()
        return 2
    except KeyboardInterrupt:  # before there was anything to end
        if asked.command == "run":
            sys.stderr.write("jaxnb: interrupted while the processes were starting\n")
        return 128 + signal.SIGINT
    except BrokenPipeError:  # whoever reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _open_what_is_closed() -> None:
    """Has closed standard streams write to nowhere (``>&-``); else a socket gets their number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


class Parser(argparse.ArgumentParser):
    """Knows its options; argparse's own table is private.

    Attributes:
        options: Its arguments by the options' names.
        run: The parser of `run`.
    """

    options: Mapping[str, argparse.Action] = MappingProxyType({})
    run: Parser

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """Adds an argument; a shell completes some by the names of files."""
        action = super().add_argument(*names, **settings)
        self.options = {**self.options, **dict.fromkeys(action.option_strings, action)}
        is_file = action.metavar in ("FILE", "SCRIPT", "ARGUMENT")
        if is_file and (shtab := sys.modules.get("shtab")):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        return action


def make_parser() -> Parser:
    """Returns the parser, which shtab makes completions of too."""
    parser = Parser("jaxnb", description="Runs programs on several JAX processes, in lockstep.")
    parser.add_argument("--version", action="version", version=f"jaxnb {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    parser.run = commands.add_parser(
        "run",
        help="run a script, a module or a notebook on N processes",
        description="Runs a script on N processes that are joined by jax.distributed.",
        epilog=_RUN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_run(parser.run)
    doctor = commands.add_parser("doctor", help="look for what keeps groups from starting")
    doctor.add_argument("--json", action="store_true", help="print it as JSON")
    clean = commands.add_parser("clean", help="list and remove what a crash has left")
    clean.add_argument("--yes", action="store_true", help="remove it without asking")
    clean.add_argument("--compile-cache", action="store_true", help="empty the user's cache, too")
    clean.add_argument("--dry-run", action="store_true", help="list it only")
    course = commands.add_parser("course", help="write the course's notebooks to a folder")
    course.add_argument("folder", metavar="DIR", help="where to; is made if it does not exist")
    course.add_argument("--solutions", action="store_true", help="write the solutions too")
    return parser


def _course(asked: argparse.Namespace) -> int:
    from pathlib import Path

    from jaxnb.course.writing import write_course
    from jaxnb.errors import UsageError

    try:
        print(write_course(Path(asked.folder), solutions=asked.solutions))
    except UsageError as error:
        sys.stderr.write(f"jaxnb: {error}\n")
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
        sys.stderr.write(
            f"jaxnb: The course could not be written to {asked.folder}. {why}. What was written "
            "before that stays; the same command goes on.\n"
        )
    else:
        return 0
    return 2


def _seconds(text: str) -> float:
    from jaxnb.magics.arguments import positive_seconds  # late: the help does without

    return positive_seconds(text)


def _add_run(run: Parser) -> None:
    add = run.add_argument  # to import the choices would take longer than the help itself
    add("script", nargs="?", metavar="SCRIPT", help="a .py file, a folder with __main__.py, .ipynb")
    add("arguments", nargs="*", metavar="ARGUMENT", help="the script's own: see below")
    add("-m", dest="module", metavar="MODULE", help="run a module, as python -m does")
    add("-n", type=int, metavar="N", help="processes; default: one per GPU, else 4")
    add("--devices-per-process", type=int, metavar="D", help="CPU devices of each process")
    add("--platform", default="auto", metavar="P", choices=("auto", "cpu", "gpu"),
        help="auto, cpu or gpu; default: auto")  # fmt: skip
    add("--launcher", metavar="L", help="fork, local, ssh, mpi, slurm (--nodes N, --time T …)")
    add("--hosts", default="", metavar="HOSTS", help="run it over ssh on hostA,hostB:2")
    add("--env", action="append", default=[], metavar="NAME=VALUE",
        help="a variable for processes on other hosts")  # fmt: skip
    for name in ("--nodes", "--gpus-per-node"):
        add(name, type=int, help=argparse.SUPPRESS)
    add("--collectives", default="gloo", help=argparse.SUPPRESS)
    for name in ("--attach", "--partition", "--account", "--qos"):
        add(name, default="", help=argparse.SUPPRESS)
    add("--time", dest="time_limit", default="", help=argparse.SUPPRESS)
    add("--compile-cache", default="", metavar="DIR", help="folder for compiled programs, or off")
    add("--check", default="strict", choices=("off", "strict"), help="off: plain JAX, which hangs")
    add("--timeout", type=_seconds, metavar="S", help="end it after S seconds (a notebook's cell)")
    add("--outputs", default="merged", choices=("all", "first", "merged"),
        help="equal lines: each, the first process's, or one")  # fmt: skip
    add("--timeline", default="", metavar="FILE", help="write what each process did: .html, .json")
    add("--json", default="", metavar="FILE", help="write outcome and times")
    add("--output", metavar="FILE", help="where a notebook is saved; default: in place")
    add("-p", dest="parameters", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help="a parameter of a notebook, as papermill's")  # fmt: skip


def _split(
    arguments: list[str], options: Mapping[str, argparse.Action]
) -> tuple[list[str], list[str]]:
    """Returns the arguments of `run` that are jaxnb's, and those that are the script's."""
    i, has_target = 1, False
    while i < len(arguments):
        each = arguments[i]
        if each == "--":
            return arguments[:i], arguments[i + 1 :]
        name, has_value, _ = each.partition("=")
        if name not in options and each[:2] in ("-n", "-m"):
            name, has_value = each[:2], "="  # -n4
        if name in options:
            has_target |= name == "-m"
            count = options[name].nargs
            i += 1 if has_value else 2 if count is None else 1 + int(count)
        elif has_target or each.startswith("-"):
            break
        else:
            has_target = True
            i += 1
    return arguments[:i], arguments[i:]


def _run(parser: Parser, asked: argparse.Namespace, given: list[str], own: list[str]) -> int:
    from jaxnb.cli.scripts import module_of, require_writable, script_of
    from jaxnb.errors import JaxnbError, StartError, UsageError
    from jaxnb.launch import forkclient
    from jaxnb.options import JOB_OPTIONS, StartOptions, given_twice, launcher_of, submits_job

    if twice := given_twice(given, parser.run.options):
        parser.error(twice)
    target = asked.module or asked.script
    if not target and own:
        parser.error(f"`jaxnb run` has no option {own[0]}; `jaxnb run --help` lists all")
    if not target or (asked.module and asked.script):
        parser.error("name a script, or a module with -m: jaxnb run SCRIPT.py -n 4")
    is_notebook = not asked.module and target.endswith(".ipynb")
    if (asked.output is not None or asked.parameters) and not is_notebook:
        parser.error("--output and -p are for notebooks")
    if asked.timeline and os.path.splitext(asked.timeline)[1] not in (".html", ".json", ".txt"):
        parser.error("--timeline writes .html, .json and .txt")
    if asked.json and asked.json == asked.timeline:
        parser.error("--json and --timeline name the same file")
    try:
        options = StartOptions(
            num_processes=asked.n,
            devices_per_process=asked.devices_per_process,
            platform=asked.platform,
            launcher=asked.launcher,
            hosts=asked.hosts,
            env=tuple(asked.env),
            attach=asked.attach,
            collectives=asked.collectives,
            **{name: getattr(asked, name) for name in JOB_OPTIONS},
            compile_cache=asked.compile_cache,
            check=asked.check,
            bare=True,
        )
        if is_notebook:
            if (
                own
                or asked.n
                or asked.hosts
                or asked.launcher
                or asked.env
                or asked.devices_per_process
                or asked.timeline
                or asked.json
            ):
                parser.error(
                    "a notebook starts its processes itself (`%spmd_start -n 4`) and has no "
                    "arguments: only --timeout, --output and -p go with it"
                )
            from jaxnb.cli.notebooks import run_notebook

            parameters = dict(asked.parameters)
            return run_notebook(target, asked.output or "", asked.timeout, parameters)
        script = module_of(target, own) if asked.module else script_of(target, own)
        for file in filter(None, (asked.json, asked.timeline)):
            require_writable(file)
        launcher = launcher_of(options)
        if not (options.hosts or submits_job(options)):  # this host may not be among them
            forkclient.start(launcher)
    except SyntaxError as error:
        sys.stderr.write("".join(traceback.format_exception_only(error)))
        return 1
    except JaxnbError as error:
        sys.stderr.write(f"jaxnb: {error}\n")
        return 2 if isinstance(error, (UsageError, StartError)) else 1
    from jaxnb.cli.run import run  # which takes as long as the fork server's imports

    return run(options, script, asked)
