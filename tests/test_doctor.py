"""`shoal doctor`: every finding has a state, whatever is wrong has a fix, and nothing that is wrong stops it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
from pathlib import Path

import pytest

from shoal.cli import doctor
from shoal.cli.main import main
from shoal.native import build


def findings(check) -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in doctor.examine(check)}


def test_the_report_is_complete_as_json(capsys):
    code = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert set(report["sections"]) == set(doctor.CHECKS)
    found = [one for section in report["sections"].values() for one in section]
    assert {one["state"] for one in found} <= set(doctor.STATES)
    assert code == report["broken"] == any(one["state"] == "broken" for one in found)
    assert all(one["fix"] for one in found if one["state"] in ("broken", "slow")), found


def test_the_report_names_fixes(capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("shoal.cores.available_cores", lambda: 4)
    main(["doctor"])
    out = capsys.readouterr().out
    assert "1: torch and env threads use 1 of 4 cores" in out
    assert "OMP_NUM_THREADS (slow)" in out
    assert "unset OMP_NUM_THREADS" in out


def test_what_is_not_needed_is_apart_from_what_is(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_missing_requirements", lambda extra: [] if extra in ("", "plot") else ["a-package"])
    monkeypatch.setattr("shoal.cores.idle_cores", lambda: 1)
    main(["doctor"])
    out = capsys.readouterr().out
    names = set(importlib.metadata.metadata("shoal").get_all("Provides-Extra")) - {"dev", "bench", "docs"}
    assert names == set(doctor.GIVES)
    needed, _, optional = out.partition("Optional, not installed: pip install 'shoal[NAME]'")
    assert "✓ plot" in needed
    assert "onnx" not in needed
    assert re.search(r"\n  onnx +shoal export --onnx\n", optional)
    assert f"{len(names) - 1} optional extras are not installed." in optional
    assert "All that Shoal needs works." in optional
    assert "missing" not in out


def test_the_report_says_first_what_does_not_work(capsys):
    found = {
        "Package": [doctor.Finding("rich", "broken", "not installed", "pip install rich")],
        "CPU": [doctor.Finding("load", "slow", "busy", "wait"), doctor.Finding("CPU", "fine", "fast")],
    }
    doctor.show(found, "1.0")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 thing that Shoal needs does not work. 1 thing could be faster."
    assert lines.index("What to do") + 1 == lines.index(f"  {'rich (broken)':<15}pip install rich")


def test_without_a_compiler_stock_envs_work_if_they_are_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    found = findings(doctor._compilers)["C compiler"]
    assert (found.state, "apt-get install gcc" in found.fix) == ("optional", True)
    monkeypatch.setattr(build, "find_library", lambda source, variant: Path("x"))
    assert findings(doctor._package)["stock envs"].state == "fine"
    monkeypatch.setattr(build, "find_library", lambda source, variant: None)
    found = findings(doctor._package)["stock envs"]
    assert (found.state, found.text.startswith("0 of ")) == ("broken", True)


def test_a_missing_package_is_broken_and_a_missing_extra_is_not(monkeypatch):
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in ("rich", "optuna"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = findings(doctor._package)["rich"]
    assert (found.state, found.fix) == ("broken", "pip install rich")
    found = findings(doctor._extras)["sweep"]
    assert (found.state, found.fix) == ("optional", "pip install 'shoal[sweep]'")


def test_a_quota_a_busy_machine_and_little_shared_memory_are_slow(monkeypatch):
    monkeypatch.setattr("shoal.cores.cpu_quota", lambda *_: 0.5)
    monkeypatch.setattr("shoal.cores.idle_cores", lambda: 0)
    monkeypatch.setattr(doctor, "LITTLE_SHM", 1 << 60)
    found = findings(doctor._cpu)
    for name, fix in {"CPU quota": "--cpus", "load": "top", "shared memory": "--shm-size"}.items():
        assert found[name].state == "slow"
        assert fix in found[name].fix


def test_simd_that_is_limited_is_slow(monkeypatch):
    if len(build.variants()) == 1:
        pytest.skip("this kind of machine has one variant")
    build.library(build.CORE_SOURCE, "base")
    monkeypatch.setenv("SHOAL_SIMD", "base")
    found = findings(doctor._cpu)["SIMD"]
    assert (found.state, found.fix) == ("slow", "unset SHOAL_SIMD")


def test_a_driver_without_a_torch_for_it_is_slow(monkeypatch):
    import torch

    monkeypatch.setattr(doctor, "_driver", lambda: "driver 580.1")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert findings(doctor._gpu)["GPU"].state == "slow"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "too old" in findings(doctor._gpu)["GPU"].text
    monkeypatch.setattr(doctor, "_driver", lambda: None)
    assert findings(doctor._gpu)["GPU"].state == "optional"


def test_folders_that_cannot_be_written_are_broken(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(file / "cache"))
    found = findings(doctor._folders)["cache"]
    assert (found.state, "SHOAL_CACHE_DIR" in found.fix) == ("broken", True)
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    (tmp_path / "env.so").write_bytes(bytes(3_000_000))
    assert "3 MB of compiled envs" in findings(doctor._folders)["cache"].text
    monkeypatch.setenv("PATH", os.devnull)
    assert findings(doctor._folders)["command"].fix.startswith("export PATH=")


def test_a_check_that_raises_is_a_finding():
    def _bad():
        yield doctor.Finding("first", "fine", "seen")
        raise RuntimeError("no such thing")

    found = doctor.examine(_bad)
    assert [one.state for one in found] == ["fine", "broken"]
    assert "RuntimeError: no such thing" in found[1].text
