"""The command line: which arguments are jaxnb's, what is refused, and ``jaxnb doctor``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from jaxnb.cli import doctor, main, notebooks, scripts
from jaxnb.cli.findings import Finding, Level
from jaxnb.errors import UsageError


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ("run a.py -n 4", ""),
        ("run -n4 --platform=cpu a.py --lr 0.1 -n 2", "--lr 0.1 -n 2"),
        ("run a.py -n 4 data.txt --timeout 3", "data.txt --timeout 3"),
        ("run a.py -- --timeout 3", "--timeout 3"),
        ("run -m pkg.mod -n 2 --lr 0.1", "--lr 0.1"),
        ("run a.ipynb -p steps 3 --output b.ipynb", ""),
        ("run a.py --timeout", ""),
    ],
)
def test_the_scripts_arguments_begin_with_the_first_unknown_one(given: str, own: str) -> None:
    assert main._split(given.split(), main.make_parser().run.options)[1] == own.split()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("run", "name a script"),
        ("run --lr 3 a.py", "has no option --lr"),
        ("run a.py -n 0", "at least 1"),
        ("run a.py --timeline b.jsn", "writes .html, .json and .txt"),
        ("run a.py --timeline b.json --json b.json", "name the same file"),
        ("run a.py --output b", "are for notebooks"),
        ("run a.ipynb -n 4", "%spmd_start -n 4"),
        ("run -n 2 --env A=1 --env B=2 a.py -n 4", "`-n 2` and `-n 4` are both given"),
    ],
)
def test_what_is_not_possible_is_said(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main.main(line.split())
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert told in capsys.readouterr().err


def test_help_fits_a_screen_and_loads_no_jax() -> None:
    program = "from jaxnb.cli.main import make_parser; make_parser().parse_args(['run', '--help'])"
    command = [sys.executable, "-X", "importtime", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) <= 42
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert loaded & {"jax", "ipyparallel", "IPython", "numpy"} == set()


COMPLETE = """\
source <(shtab --shell=bash jaxnb.cli.main.make_parser)
for line in "${@}"; do
    COMP_WORDS=(jaxnb $line)
    if [[ $line == *" " ]]; then COMP_WORDS+=(""); fi
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _shtab_jaxnb jaxnb "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "${COMPREPLY[*]}"
done
"""


def test_bash_completes_what_shtab_writes(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    lines = {
        "r": "run",
        "run --platform ": "auto cpu gpu",
        "run tr": "train.py",
        "run --timeout 3 --timeline t": "train.py",
        "run -n 4 train.py --ti": "--timeout --timeline",
        "run -n 4 train.py --lr 0.1 t": "train.py",
    }
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", COMPLETE, "bash", *lines],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert dict(zip(lines, done.stdout.splitlines(), strict=True)) == lines


def test_a_module_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "__main__.py").write_text("1")
    (package / "mod.py").write_text("2")
    monkeypatch.chdir(tmp_path)
    assert scripts.module_of("pkg", ()).source == b"1"
    found = scripts.module_of("pkg.mod", ("x",))
    assert (found.source, found.module) == (b"2", "pkg.mod")
    assert found.arguments == (str(package / "mod.py"), "x")
    with pytest.raises(UsageError, match="'none' was not found"):
        scripts.module_of("pkg.none", ())


def run_notebook(file: Path, **parameters: str) -> int:
    return notebooks.run_notebook(str(file), output="", timeout=None, parameters=parameters)


def test_parameters_need_papermill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "in.ipynb")
    monkeypatch.setitem(sys.modules, "papermill.iorw", None)
    with pytest.raises(UsageError, match=r"papermill cannot be .*iorw halted.*'jaxnb\[cli\]'"):
        run_notebook(tmp_path / "in.ipynb", steps="3")


@pytest.mark.parametrize(
    "text", ["", "x = 1", "[]", '{"cells": 3}', '{"nbformat": 4, "cells": [{}], "metadata": {}}']
)
def test_what_is_not_a_notebook_is_told_in_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "in.ipynb").write_text(text)
    with pytest.raises(UsageError, match=r"Cannot read the notebook '.*in\.ipynb': "):
        run_notebook(tmp_path / "in.ipynb")


@pytest.mark.parametrize("target", ["none/x.json", "folder.json"])
@pytest.mark.parametrize("option", ["--output", "--json", "--timeline"])
def test_a_file_that_cannot_be_written_starts_nothing(
    option: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.json").mkdir()
    source = tmp_path / ("in.ipynb" if option == "--output" else "in.py")
    nbformat.write(nbformat.v4.new_notebook(), source)
    status = main.main(["run", str(source), option, str(tmp_path / target)])
    assert status == 2
    assert f"{target} cannot be written: " in (told := capsys.readouterr().err)
    assert len(told.splitlines()) == 1


def test_the_fork_server_is_started_before_what_is_large_is_imported(tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    code = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(['nbclient', 'IPython', 'ipyparallel', 'numpy', 'psutil'])\n"
        "from jaxnb.launch import forkclient\n"
        "forkclient.start = lambda launcher: sys.exit('is started')\n"
        "from jaxnb.cli.main import main\n"
        "main(['run', 'script.py', '--platform', 'cpu'])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == "is started\n"


# ---------------------------------------------------------------------- doctor


def levels(findings: object) -> list[str]:
    return [each.level for each in findings]  # type: ignore[attr-defined]


def test_few_processes_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"/sys/fs/cgroup/pids.max": "100", "/sys/fs/cgroup/pids.current": "90"}
    monkeypatch.setattr(doctor, "_read", numbers.__getitem__)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert doctor._tasks().text == "10 more processes and threads may be started"
    assert doctor._tasks().level == "warning"


@pytest.mark.parametrize(("jaxlib", "level"), [("0.11.4", "ok"), ("0.10.9", "error")])
def test_versions_that_do_not_go_together(
    monkeypatch: pytest.MonkeyPatch, jaxlib: str, level: str
) -> None:
    monkeypatch.setattr(doctor, "version", {"jax": "0.11.4", "jaxlib": jaxlib}.__getitem__)
    first = [*doctor._versions()][1]
    assert first.level == level
    assert (first.fix != "") == (level == "error")


@pytest.mark.parametrize("level", ["ok", "warning", "error"])
def test_the_exit_status_tells_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: Level
) -> None:
    found = Finding(level, "something", "a fix" if level != "ok" else "")
    monkeypatch.setattr(doctor, "CHECKS", (lambda: iter([found]),))
    assert doctor.doctor(as_json=True) == int(level == "error")
    assert json.loads(capsys.readouterr().out)[0]["level"] == level
    doctor.doctor(as_json=False)
    assert ("fix: a fix" in capsys.readouterr().out) == (level != "ok")


def test_this_machine_has_no_errors() -> None:
    checks = [each for each in doctor.CHECKS if each is not doctor._start]
    assert "error" not in [each.level for check in checks for each in check()]
