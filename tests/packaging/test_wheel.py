"""The built wheel, in an environment of its own, with no checkout near.

Whatever the package needs at run time (templates, entry points) must come with the wheel; an
editable install would hide that it does not. ``make test`` lets the new environment see the
dependencies that are installed already; ``make test-all`` has pip bring what the wheel names.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from jaxnb.course.writing import course_files

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints" / "py{}{}.txt".format(*sys.version_info[:2])

# Installing JAX takes a while on a slow disk.
pytestmark = pytest.mark.timeout(600)


def run(
    command: list[str | Path], cwd: Path, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Runs a program that knows nothing of this checkout or of this environment."""
    hidden = ("PYTHON", "VIRTUAL_ENV", "JUPYTER", "IPYTHON", "COV_")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    environ["IPYTHONDIR"] = str(cwd / "ipython")
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT]
    run(build, cwd=out)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(
    scope="module", params=["beside", pytest.param("empty", marks=pytest.mark.thorough)]
)
def python(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The Python of an environment that holds the wheel, and dependencies."""
    folder = tmp_path_factory.mktemp(request.param) / "venv"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    if request.param == "empty":
        run([*pip, "install", "-qq", "-c", CONSTRAINTS, wheel], folder, timeout=500)
        return python
    run([*pip, "install", "-qq", "--no-deps", "--no-index", wheel], cwd=folder)
    # A folder that is named in a .pth file comes last, and its own .pth files, such as that of
    # the editable install, are not read.
    site = sysconfig.get_path("purelib", vars={"base": str(folder)})
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    in_checkout = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "jaxnb").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    pages = (*(ROOT / "docs" / "pitfalls").glob("*.md"), ROOT / "docs" / "glossary.md")
    in_checkout |= {f"jaxnb/pitfalls/pages/{page.name}" for page in pages}
    in_checkout |= {f"jaxnb/course/notebooks/{name}" for name in course_files(solutions=True)}
    names = set(zipfile.ZipFile(wheel).namelist())
    in_wheel = {name for name in names if name.startswith("jaxnb/")}
    assert in_wheel == in_checkout
    assert "jaxnb/py.typed" in in_wheel
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not {name.partition("/")[0] for name in names - in_wheel} & {"tests", "benchmarks"}


FROM_IPYTHON = """
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell = InteractiveShell.instance()

def show(cell):
    with capture_output() as captured:
        shell.run_cell(cell).raise_error()
    html = [output.data["text/html"] for output in captured.outputs if "text/html" in output.data]
    print(captured.stdout, *captured.outputs, *html, sep="\\n")

show("%load_ext jaxnb")
show("%spmd_start -n 4 --platform cpu")
print("-- started")
show("%%spmd\\nprint('hello'); jax.device_count()")
print("-- ran")
show("%spmd_stop")
"""


def test_the_cards_are_shown(python: Path, tmp_path: Path) -> None:
    script = tmp_path / "from_ipython.py"
    script.write_text(FROM_IPYTHON)
    done = run([python, script], cwd=tmp_path)
    card, ran = done.stdout.partition("-- started")[::2]
    assert "<div" in card
    assert "4 processes" in card
    assert "hello" in ran
