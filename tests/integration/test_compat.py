"""Each private or undocumented name that jaxnb uses works with what is installed, or it is told."""

from __future__ import annotations

import json
import subprocess
import sys

from jaxnb.compat.inventory import USES

PROBE = """
import json
from jaxnb.compat.inventory import USES
print(json.dumps([use.problem() for use in USES]))
"""


def test_all_work_with_what_is_installed() -> None:
    """In a process of their own: they change what they try."""
    run = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=200
    )
    problems = json.loads(run.stdout.splitlines()[-1])
    told = {use.names: problem for use, problem in zip(USES, problems, strict=True) if problem}
    assert told == {}


def test_a_name_that_is_gone_is_told() -> None:
    code = (
        "import ipykernel.ipkernel as it; del it.IPythonKernel._restore_input\n"
        "from jaxnb.compat.ipykernel_requests import USES\n"
        "print([use.problem() for use in USES if '_restore_input' in use.names[-1]])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200
    )
    assert "has no attribute '_restore_input'" in run.stdout
