"""From a fresh clone to a working `.venv/bin/lapse`: `make setup`.

Needs Python, and nothing but its standard library. It finds or installs uv, lets uv lay out the
locked environment, says which Java Spark will run on, and compiles the kernels once. When all
that is already so, it returns at once.

The file must parse on Pythons too old to run Lapse (3.6 and up), so that they get one clear line
instead of a traceback: no newer syntax here.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PYTHON_MIN, PYTHON_END = (3, 11), (3, 15)  # numba's range, as requires-python in pyproject.toml
UV_MIN = (0, 9)
UV_INSTALLED = "uv==0.13.8"
GIB = 1 << 30
SPACE_BYTES_MIN = 3 * GIB
EXIT_ENVIRONMENT = 3


class SetupError(Exception):
    """The set-up cannot go on; the message is the one line a person needs."""


# --- decisions: plain functions of what was found ---------------------------------------------


def python_refusal(version):
    """Why this Python will not do, or None."""
    if PYTHON_MIN <= tuple(version[:2]) < PYTHON_END:
        return None
    return "Lapse needs Python %d.%d to %d.%d and this is %d.%d: run make PYTHON=python3.12" % (
        PYTHON_MIN + (PYTHON_END[0], PYTHON_END[1] - 1) + tuple(version[:2])
    )


def space_refusal(free_bytes, environment_exists):
    """Why this disk will not do, or None; an environment that is there has taken its space."""
    if environment_exists or free_bytes >= SPACE_BYTES_MIN:
        return None
    return "Lapse needs 3 GB of free disk space here and finds %.1f GB" % (free_bytes / GIB)


def uv_version(printed):
    """`uv 0.9.5 (...)` as (0, 9, 5); None if that is not what it says."""
    found = re.match(r"uv (\d+)\.(\d+)\.(\d+)", printed)
    return tuple(int(part) for part in found.groups()) if found else None


def new_enough(version):
    """Whether this uv reads our lock file."""
    return version is not None and version >= UV_MIN


def uv_ways(has_venv, has_pip):
    """How uv may be installed here, best first: in a venv of its own, or unpacked by pip."""
    return [way for way, possible in (("venv", has_venv), ("pip", has_pip)) if possible]


def no_uv_message(version):
    """What to install where Python has neither ensurepip nor pip, as Debian's has not."""
    return (
        "no uv, and this Python can install none: install uv, or the package "
        "python%d.%d-venv (or python3-venv, python3-pip), and run make again" % tuple(version[:2])
    )


def digest(paths, *words):
    """Names what the environment was made from."""
    sha = hashlib.sha256("\0".join(words).encode())
    for path in paths:
        with open(path, "rb") as f:
            sha.update(f.read() + b"\0")
    return sha.hexdigest()


# --- effects ----------------------------------------------------------------------------------


def say(text):
    print("setup: " + text)
    sys.stdout.flush()


def run(command, **options):
    """Run to the end, its output on ours; a SetupError if it fails."""
    sys.stdout.flush()
    code = subprocess.call(command, **options)
    if code != 0:
        raise SetupError("%s ended with %d" % (" ".join(command), code))


def usable_uv(path):
    """Whether the uv at `path` runs and is new enough."""
    try:
        printed = subprocess.check_output([path, "--version"], stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return False
    return new_enough(uv_version(printed.decode(errors="replace")))


def has_module(name):
    """Whether this Python can import `name`, asked of a fresh process: Debian drops some."""
    command = [sys.executable, "-c", "import " + name]
    return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


def install_uv(tools, way):
    """Put uv into `tools`, so that `tools/bin/uv` runs. True if it does."""
    shutil.rmtree(tools, ignore_errors=True)
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip.append("--root-user-action=ignore")
    try:
        if way == "venv":
            run([sys.executable, "-m", "venv", tools])
            run([os.path.join(tools, "bin", "python")] + pip + [UV_INSTALLED])
        else:
            run([sys.executable] + pip + ["--target", tools, UV_INSTALLED])
    except SetupError as e:
        say("%s; trying otherwise" % e)
        return False
    return usable_uv(os.path.join(tools, "bin", "uv"))


def find_uv(root):
    """The uv to use: on PATH if new enough, else our own in `.tools`, installed if need be."""
    tools = os.path.join(root, ".tools")
    own = os.path.join(tools, "bin", "uv")
    for path in (shutil.which("uv"), own):
        if path and usable_uv(path):
            return path
    for way in uv_ways(has_module("venv, ensurepip"), has_module("pip")):
        say("installing uv into .tools (%s)" % way)
        if install_uv(tools, way):
            return own
    raise SetupError(no_uv_message(sys.version_info))


def sync(root, uv):
    """The locked environment, on this very Python."""
    environment = dict(os.environ, UV_PROJECT_ENVIRONMENT=os.path.join(root, ".venv"))
    environment.pop("VIRTUAL_ENV", None)
    command = [uv, "sync", "--frozen", "--all-extras", "--no-python-downloads"]
    run([*command, "--python", sys.executable], cwd=root, env=environment)


def stamps(root):
    """What the environment and the compiled kernels are made from, a digest each."""
    lock = [os.path.join(root, name) for name in ("uv.lock", "pyproject.toml")]
    kernels = os.path.join(root, "src", "lapse", "kernels")
    names = sorted(os.listdir(kernels)) if os.path.isdir(kernels) else []
    sources = [os.path.join(kernels, name) for name in names if name.endswith(".py")]
    environment = digest(lock, sys.version, os.path.realpath(sys.executable), root)
    return {"environment": environment, "kernels": digest(sources, environment)}


def read_stamps(path):
    """What is recorded as done; nothing if the record is not there."""
    with contextlib.suppress(OSError), open(path) as f:
        return dict(line.split() for line in f)
    return {}


def write_stamps(path, done):
    temporary = path + ".tmp"
    with open(temporary, "w") as f:
        f.writelines("%s %s\n" % item for item in sorted(done.items()))
    os.replace(temporary, path)


def show_java(python):
    """Which Java it will be; without one only Spark is missing, so the set-up goes on."""
    code = (
        "import os; from lapse.base.errors import LapseError"
        "\nfrom lapse.spark.session.java import find_java"
        "\ntry: print('setup: ' + find_java(os.environ).describe())"
        "\nexcept LapseError as e: print('setup: %s' % e)"
    )
    run([python, "-c", code])


def set_up(root):
    """All steps that are not done yet."""
    environment = os.path.join(root, ".venv")
    python = os.path.join(environment, "bin", "python")
    stamp = os.path.join(environment, ".lapse-setup")
    wanted, done = stamps(root), read_stamps(stamp)
    whole = all(os.path.exists(os.path.join(environment, "bin", n)) for n in ("python", "lapse"))
    if whole and done == wanted:
        return
    if not whole or done.get("environment") != wanted["environment"]:
        refusal = space_refusal(shutil.disk_usage(root).free, whole)
        if refusal:
            raise SetupError(refusal)
        sync(root, find_uv(root))
        show_java(python)
    say("compiling kernels (once)")
    kept = dict(os.environ)
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # each command would take a second longer
    run([python, os.path.join(root, "tools", "warm.py")], env=kept)
    write_stamps(stamp, wanted)
    say(".venv/bin/lapse is ready")


def main():
    refusal = python_refusal(sys.version_info)
    try:
        if refusal:
            raise SetupError(refusal)
        set_up(ROOT)
    except SetupError as e:
        sys.stderr.write("setup: %s\n" % e)
        return EXIT_ENVIRONMENT
    return 0


if __name__ == "__main__":
    sys.exit(main())
