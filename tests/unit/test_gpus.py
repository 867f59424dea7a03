"""Which GPUs a host has, as an ``nvidia-smi`` on the PATH tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxnb.launch.host import visible_gpus


def put_nvidia_smi(folder: Path, script: str) -> None:
    """Writes a small program of that name, as a driver installs one."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


@pytest.fixture
def four_gpus(folder: Path) -> None:
    put_nvidia_smi(folder, "printf '0\\n1\\n2\\n3\\n'")


def test_no_nvidia_smi_is_no_gpu(folder: Path) -> None:
    assert visible_gpus() == ()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}) == ()


@pytest.mark.usefixtures("four_gpus")
def test_all_are_visible_by_default() -> None:
    assert visible_gpus() == ("0", "1", "2", "3")


def test_only_the_indices_are_asked_for(folder: Path) -> None:
    put_nvidia_smi(folder, f'echo "$@" > {folder}/asked; echo 0')
    assert visible_gpus({}) == ("0",)
    assert (folder / "asked").read_text().split() == ["--query-gpu=index", "--format=csv,noheader"]


@pytest.mark.parametrize(
    "script",
    ["echo 'NVIDIA-SMI has failed because it could not reach the driver.'; exit 9", "exit 0"],
)
def test_a_driver_without_a_card_is_no_gpu(folder: Path, script: str) -> None:
    put_nvidia_smi(folder, script)
    assert visible_gpus() == ()


def test_a_program_that_cannot_run_is_no_gpu(folder: Path) -> None:
    program = folder / "nvidia-smi"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    assert visible_gpus() == ()


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("2", ("2",)),
        ("3,1", ("3", "1")),
        (" 0 , 2 ", ("0", "2")),
        ("", ()),
        ("-1", ()),
        ("1,-1,2", ("1",)),
        ("1,9,2", ("1",)),
        ("GPU-8c2f,MIG-1a", ("GPU-8c2f", "MIG-1a")),
        ("NoDevFiles", ()),
    ],
)
def test_cuda_visible_devices_is_respected(
    visible: str, seen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": visible}) == seen
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == seen
