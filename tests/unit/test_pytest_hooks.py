"""What the suite's own hooks do, each on a small suite in a temporary folder."""

from __future__ import annotations

import pytest

from support.pytest_hooks import KINDS

HOOKS = ["-p", "support.pytest_hooks", "-p", "no:cacheprovider", "--disable-plugin-autoload"]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite with one passing, one skipping and one file-skipping test of two kinds."""
    monkeypatch.delenv("JAXNB_FORBID_SKIPS", raising=False)
    kinds = "\n".join(f"    {kind}" for kind in (*KINDS, "may_be_skipped", "thorough", "timing"))
    pytester.makeini(
        f"[pytest]\naddopts = --strict-markers --import-mode=importlib\nmarkers =\n{kinds}\n"
    )
    for kind in ("unit", "gpu"):
        folder = pytester.path / "tests" / kind
        folder.mkdir(parents=True)
        (folder / f"test_{kind}.py").write_text(
            "import pytest\n"
            "def test_runs(): pass\n"
            "def test_skips(): pytest.skip('not here')\n"
            "@pytest.mark.xfail\ndef test_known(): assert False\n"
        )
        (folder / f"test_{kind}_file.py").write_text(
            "import pytest\npytest.skip('none of it', allow_module_level=True)\n"
        )
    return pytester


def test_skips_are_fine_by_default(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess(*HOOKS, "tests")
    result.assert_outcomes(passed=2, skipped=4, xfailed=2)
    assert result.ret == 0


def test_a_forbidden_skip_fails(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXNB_FORBID_SKIPS", "1")
    result = suite.runpytest_inprocess(*HOOKS, "tests/unit/test_unit.py", "-rf")
    result.assert_outcomes(passed=1, failed=1, xfailed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*JAXNB_FORBID_SKIPS*not here*"])


def test_a_forbidden_skip_of_a_file_fails(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXNB_FORBID_SKIPS", "1")
    result = suite.runpytest_inprocess(*HOOKS, "tests/unit/test_unit_file.py")
    result.assert_outcomes(errors=1)
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*JAXNB_FORBID_SKIPS*none of it*"])


def test_gpu_tests_may_be_skipped(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXNB_FORBID_SKIPS", "1")
    result = suite.runpytest_inprocess(*HOOKS, "tests/gpu")
    result.assert_outcomes(passed=1, skipped=2, xfailed=1)
    assert result.ret == 0


def test_what_not_every_host_allows_may_be_skipped(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXNB_FORBID_SKIPS", "1")
    file = suite.path / "tests" / "unit" / "test_host.py"
    file.write_text(
        "import pytest\n@pytest.mark.may_be_skipped\ndef test_skips(): pytest.skip('not here')\n"
    )
    result = suite.runpytest_inprocess(*HOOKS, "tests/unit/test_host.py")
    result.assert_outcomes(skipped=1)
    assert result.ret == 0


def test_the_folder_is_the_kind(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess(*HOOKS, "tests", "-m", "unit", "-v")
    result.stdout.fnmatch_lines(["tests/unit/test_unit.py::test_runs PASSED*"])
    result.stdout.no_fnmatch_line("tests/gpu/test_gpu.py::test_runs PASSED*")


def test_a_test_outside_the_kinds_is_refused(suite: pytest.Pytester) -> None:
    (suite.path / "tests" / "test_stray.py").write_text("def test_stray(): pass\n")
    result = suite.runpytest_inprocess(*HOOKS, "tests")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_stray.py::test_stray is in none of the folders*"])


def test_kinds_run_in_their_order(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess(*HOOKS, "tests/gpu", "tests/unit", "-v", "-k", "runs")
    result.stdout.fnmatch_lines(
        ["tests/unit/test_unit.py::test_runs *", "tests/gpu/test_gpu.py::test_runs *"]
    )


def test_each_eighth_of_many_cases_is_played(suite: pytest.Pytester) -> None:
    folder = suite.path / "tests" / "integration"
    folder.mkdir()
    (folder / "test_cases.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(10))\ndef test_many(n): pass\n"
        "slow = [pytest.param(n, marks=pytest.mark.thorough) for n in range(3, 9)]\n"
        "@pytest.mark.parametrize('n', [0, 1, 2, *slow])\ndef test_chosen(n): pass\n"
    )
    result = suite.runpytest_inprocess(*HOOKS, "tests/integration", "-m", "not thorough", "-v")
    result.assert_outcomes(passed=5, deselected=14)
    for case in ("many[0]", "many[8]", "chosen[0]", "chosen[1]", "chosen[2]"):
        result.stdout.fnmatch_lines([f"*test_{case.replace('[', '[[]')} PASSED*"])


def test_a_browser_test_without_chromium_says_so(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = suite.path / "tests" / "browser"
    folder.mkdir()
    (folder / "test_lab.py").write_text("def test_opens(): pass\n")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAXNB_CHROMIUM", raising=False)
    result = suite.runpytest_inprocess(*HOOKS, "tests/browser", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*no Chromium on PATH*"])
