"""The set-up's decisions as plain functions, and its fallbacks run for real where that is quick."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools import bootstrap

ROOT = Path(__file__).resolve().parents[3]


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake_uv(path: Path, version: str = "0.9.1") -> Path:
    """A uv that answers its version and writes down what else it is told."""
    log = path.parent.parent / "uv.log"
    return script(path, f'[ "$1" = --version ] && echo "uv {version}" || echo "$@" >> "{log}"')


def fake_python(path: Path, *, modules: str) -> Path:
    """A Python of which only `modules` (of those the set-up asks for) can be imported."""
    ready = path.parent / "uv-to-install"
    text = f"""
case "$*" in
  "-c import venv, ensurepip") case " {modules} " in *" ensurepip "*) exit 0;; *) exit 1;; esac;;
  "-c import pip") case " {modules} " in *" pip "*) exit 0;; *) exit 1;; esac;;
  "-m venv "*) echo "Error: ensurepip is not available" >&2; exit 1;;
  "-m pip install "*--target*) mkdir -p "$8/bin"; cp "{ready}" "$8/bin/uv"; exit;;
esac
echo "unexpected: $*" >&2; exit 9"""
    fake_uv(ready)
    return script(path, text)


@pytest.mark.parametrize(
    ("version", "fits"),
    [((3, 10), False), ((3, 11), True), ((3, 14, 2), True), ((3, 15), False), ((2, 7), False)],
)
def test_which_pythons_will_do(version: tuple[int, ...], fits: bool) -> None:
    refusal = bootstrap.python_refusal(version)
    assert (refusal is None) == fits
    assert fits or "3.11 to 3.14" in refusal


def test_the_range_of_pythons_is_the_packages() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    low, high = bootstrap.PYTHON_MIN, bootstrap.PYTHON_END
    assert wanted == f">={low[0]}.{low[1]},<{high[0]}.{high[1]}"


def test_old_pythons_can_parse_it() -> None:
    """They must reach the line that refuses them. Shown able to fail by the walrus beside it."""
    ast.parse(Path(bootstrap.__file__).read_text(), feature_version=(3, 6))
    with pytest.raises(SyntaxError):
        ast.parse("(x := 1)", feature_version=(3, 6))


def test_a_python_out_of_range_gets_one_line_and_nothing_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 9, 1))
    monkeypatch.setattr(bootstrap, "ROOT", str(tmp_path))
    assert bootstrap.main() == 3
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("free", "exists", "fits"),
    [(3 << 30, False, True), ((3 << 30) - 1, False, False), (1 << 20, True, True)],
)
def test_space(free: int, exists: bool, fits: bool) -> None:
    refusal = bootstrap.space_refusal(free, exists)
    assert (refusal is None) == fits
    assert fits or "needs 3 GB" in refusal


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("uv 0.13.8 (abc 2026-01-01)", (0, 13, 8)),
        ("uv 0.8.22\n", (0, 8, 22)),
        ("uv 1.0.0", (1, 0, 0)),
        ("no such command", None),
    ],
)
def test_uv_versions(printed: str, version: tuple[int, ...] | None) -> None:
    assert bootstrap.uv_version(printed) == version


def test_which_uv_is_new_enough() -> None:
    fits = [bootstrap.new_enough(v) for v in ((0, 8, 99), (0, 9, 0), (0, 13, 8), (1, 0, 0), None)]
    assert fits == [False, True, True, True, False]


def test_ways_to_install_uv() -> None:
    assert bootstrap.uv_ways(True, True) == ["venv", "pip"]
    assert bootstrap.uv_ways(False, True) == ["pip"]
    assert bootstrap.uv_ways(True, False) == ["venv"]
    assert bootstrap.uv_ways(False, False) == []


# --- for real ------------------------------------------------------------------------------------


def find_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, on_path: str | None, modules: str
) -> str:
    """`bootstrap.find_uv` on a machine with this uv on PATH and this Python."""
    places = tmp_path / "path"
    if on_path:
        fake_uv(places / "uv", on_path)
    monkeypatch.setenv("PATH", f"{places}:/usr/bin:/bin")
    monkeypatch.setattr(bootstrap.shutil, "which", which_only(places))
    python = fake_python(tmp_path / "python", modules=modules)
    monkeypatch.setattr(bootstrap.sys, "executable", str(python))
    (tmp_path / "clone").mkdir()
    return bootstrap.find_uv(str(tmp_path / "clone"))


def which_only(folder: Path):
    """A `which` that sees one folder: the machine's own uv must not answer."""
    return lambda name: str(folder / name) if os.access(folder / name, os.X_OK) else None


def test_uv_on_path_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = find_uv(tmp_path, monkeypatch, on_path="0.9.0", modules="")
    assert uv == str(tmp_path / "path" / "uv")


def test_an_old_uv_on_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = find_uv(tmp_path, monkeypatch, on_path="0.8.3", modules="pip")
    assert uv == str(tmp_path / "clone" / ".tools" / "bin" / "uv")


def test_without_ensurepip_pip_unpacks_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = find_uv(tmp_path, monkeypatch, on_path=None, modules="pip")
    assert bootstrap.usable_uv(uv)


def test_a_venv_that_fails_falls_back_to_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Debian's venv module is there and fails for want of ensurepip."""
    uv = find_uv(tmp_path, monkeypatch, on_path=None, modules="ensurepip pip")
    assert bootstrap.usable_uv(uv)
    assert "trying otherwise" in capsys.readouterr().out


def test_with_neither_one_line_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(bootstrap.SetupError, match="python3-venv") as raised:
        find_uv(tmp_path, monkeypatch, on_path=None, modules="")
    assert "\n" not in str(raised.value)


def test_uv_left_in_tools_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.shutil, "which", lambda _: None)
    own = fake_uv(tmp_path / ".tools" / "bin" / "uv")
    assert bootstrap.find_uv(str(tmp_path)) == str(own)


def test_steps_are_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync, Java, kernels, stamp; then nothing; then only what changed."""
    clone = tmp_path / "clone"
    kernels = clone / "src" / "lapse" / "kernels"
    kernels.mkdir(parents=True)
    for path in (clone / "uv.lock", clone / "pyproject.toml", kernels / "keep.py"):
        path.write_text("1")
    log = tmp_path / "uv.log"
    monkeypatch.setattr(bootstrap, "find_uv", lambda _: str(fake_uv(tmp_path / "bin" / "uv")))
    monkeypatch.setattr(bootstrap, "space_refusal", lambda _free, _exists: None)
    for name in ("python", "lapse"):
        script(clone / ".venv" / "bin" / name, f'echo "{name} ${{2:-$(basename "$1")}}" >> "{log}"')

    def done() -> list[str]:
        bootstrap.set_up(str(clone))
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [line.split(";")[0] for line in lines if line.startswith(("sync", "python"))]

    sync = f"sync --frozen --all-extras --no-python-downloads --python {sys.executable}"
    everything = [sync, "python import os", "python warm.py"]
    assert done() == everything
    assert done() == []
    (kernels / "keep.py").write_text("2")
    assert done() == ["python warm.py"]
    (clone / "uv.lock").write_text("2")
    assert done() == everything
    (clone / ".venv" / "bin" / "lapse").unlink()
    assert done() == everything
    script(clone / ".venv" / "bin" / "lapse", "exit 0")
    script(clone / ".venv" / "bin" / "python", "exit 1")
    (kernels / "keep.py").write_text("3")
    with pytest.raises(bootstrap.SetupError, match=r"warm\.py ended with 1"):
        done()
    stamp = bootstrap.read_stamps(str(clone / ".venv" / ".lapse-setup"))
    assert stamp != bootstrap.stamps(str(clone))


def test_a_full_disk_stops_it_before_anything_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("uv.lock", "pyproject.toml"):
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(bootstrap, "SPACE_BYTES_MIN", 1 << 60)
    with pytest.raises(bootstrap.SetupError, match="needs 3 GB"):
        bootstrap.set_up(str(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pyproject.toml", "uv.lock"]


def test_make_says_what_it_can_do() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("help", "setup", "demo", "check", "test", "torture", "deps", "clean"):
        assert f"make {target} " in done.stdout
