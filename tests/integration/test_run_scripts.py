"""Scripts as people have them run unchanged under ``jaxnb run``, and compute the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.fixtures import PATIENT_SECONDS

RUN = ("-m", "jaxnb", "run", "--platform", "cpu")
FOLDER = Path(__file__).parent / "scripts"


def output(*words: str) -> str:
    """Returns what a command writes, which must end well."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=3 * PATIENT_SECONDS,  # four processes that compile a whole training at a time
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.thorough
def test_a_flax_model_is_trained_as_on_one_process() -> None:
    """With a loader for each process, batch statistics and dropout over all of them."""
    told = output(*RUN, "flax_digits.py", "-n", "4", "--join")
    alone, ours = curve(output("flax_digits.py")), curve(told)
    assert ours == pytest.approx(alone, abs=0.01)
    assert told.count("[0-3] step") == len(ours) == 4
    assert ours[-1] < 0.75 * ours[0]


def curve(text: str) -> list[float]:
    """Returns the losses that a training has printed."""
    return [float(each) for each in re.findall(r"loss (\S+)", text)]


@pytest.mark.thorough
def test_the_script_of_jaxs_guide_runs_unchanged() -> None:
    own = ("{process_index}", "{num_processes}")
    told = output(*RUN, "guide.py", "-n", "4", "--devices-per-process", "2", *own)
    found = re.findall(r"\[\d\] process=(\d) got result: -0\.1239873", told)
    assert sorted(found) == ["0", "1", "2", "3"]
    assert told.count("has local data") == 8


def test_a_module_has_its_relative_imports(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("NAME = 'other'")
    (package / "mod.py").write_text(
        "import sys\nfrom .other import NAME\n"
        "from tqdm_like import bar\nfor i in bar(3): pass\n"
        "print(__name__, __package__, __spec__.name, NAME, sys.argv[1:])"
    )
    (tmp_path / "tqdm_like.py").write_text(
        "import sys\ndef bar(n):\n"
        "    for i in range(n):\n"
        "        print(f'\\r{i + 1}/{n}', end='', file=sys.stderr, flush=True)\n"
        "        yield i\n"
        "    print(file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, *RUN, "-n", "2", "-m", "pkg.mod", "x"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENT_SECONDS,
        check=False,
    )
    assert done.stdout == "[0-1] __main__ pkg pkg.mod other ['x']\n", done.stderr
    assert done.stderr == "[0-1] 3/3\n"
