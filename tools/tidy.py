"""The repository's own taste, as checks: what linters do not know about Lapse.

Each rule takes the repository and yields `Finding`s. `tests/test_tidy.py` runs them all over the
repository, `tests/unit/tools/test_tidy.py` shows on small bad samples that each can fail. What is
allowed all the same stands in `tests/tidy-allowed.toml`, with its reason; an entry nothing needs
any more is a finding too.
"""

from __future__ import annotations

import ast
import functools
import itertools
import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60

CODE_SUFFIXES = (".py", ".sh", ".java", ".js", ".css", ".html")
BINARY_SUFFIXES = (".xz", ".gz", ".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".png")
GENERATED = ("uv.lock", "LICENSE")


@dataclass(frozen=True, slots=True)
class Finding:
    """One breach: `key` is what an entry in tidy-allowed.toml names."""

    rule: str
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.key}: {self.text}"


@dataclass(frozen=True)
class Repository:
    """The files git knows or would know, by their path from the root."""

    root: Path
    paths: tuple[str, ...]
    _trees: dict[str, ast.Module] = field(default_factory=dict, repr=False)

    @classmethod
    def at(cls, root: Path) -> Repository:
        """Tracked and new files, save what git ignores; every file where git is not in use."""
        command = ["git", "ls-files", "-coz", "--exclude-standard"]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            names = [n for n in done.stdout.split("\0") if n and (root / n).is_file()]
        else:
            names = [
                (Path(folder) / name).relative_to(root).as_posix()
                for folder, below, files in os.walk(root)
                if _prune(below)
                for name in files
            ]
        return cls(root, tuple(sorted(set(names))))

    def text(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    def tree(self, path: str) -> ast.Module:
        if path not in self._trees:
            self._trees[path] = ast.parse(self.text(path), path)
        return self._trees[path]

    def python(self, *folders: str) -> list[str]:
        """Python files below any of the folders."""
        return [p for p in self.paths if p.endswith(".py") and p.startswith(folders)]

    def texts(self) -> list[str]:
        """Everything a person wrote as text."""
        return [p for p in self.paths if not p.endswith(BINARY_SUFFIXES) and p not in GENERATED]


def _prune(folders: list[str]) -> bool:
    """Keep os.walk out of what is built or cached, as .gitignore would."""
    built = {"target", "build", "dist", "__pycache__"}
    folders[:] = [f for f in folders if f == ".ci" or not (f.startswith(".") or f in built)]
    return True


Rule = Callable[[Repository], Iterator[Finding]]


# --- who may read a clock, who may change a file -------------------------------------------------

CLOCK_HOME = "src/lapse/base/clock.py"
CLOCKS = frozenset(
    {
        *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns"),
        *("time.perf_counter", "time.perf_counter_ns", "time.process_time"),
        *("time.process_time_ns", "time.thread_time", "time.thread_time_ns", "time.clock_gettime"),
        *("time.clock_gettime_ns", "time.localtime", "time.gmtime", "time.ctime", "time.strftime"),
        *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today"),
        "datetime.date.today",
    }
)
FS_HOME = "src/lapse/base/fs.py"
WRITERS = frozenset(
    {
        *(f"os.{n}" for n in "rename renames replace remove unlink rmdir removedirs".split()),
        *(f"os.{n}" for n in "truncate ftruncate fsync fdatasync sync link symlink mkdir".split()),
        *(f"os.{n}" for n in "makedirs write pwrite pwritev writev utime".split()),
        *("os.copy_file_range", "os.posix_fallocate", "os.mkfifo", "os.mknod"),
        *(f"shutil.{n}" for n in "move copy copy2 copyfile copyfileobj copytree rmtree".split()),
        *("tempfile.mkdtemp", "tempfile.mkstemp", "tempfile.NamedTemporaryFile"),
        *("tempfile.TemporaryDirectory", "tempfile.TemporaryFile", "tempfile.mktemp"),
        *("tempfile.SpooledTemporaryFile", "tempfile.gettempdir", "tempfile.gettempdirb"),
    }
)
PATH_WRITERS = frozenset(
    "write_text write_bytes touch unlink rename rmdir mkdir symlink_to hardlink_to".split()
)
OPEN_FLAGS = frozenset({"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"})


def clocks(repo: Repository) -> Iterator[Finding]:
    """Time is read in base/clock.py alone; everybody else is handed a Clock."""
    for path in repo.python("src/"):
        if path != CLOCK_HOME:
            for name, line in _names_used(repo.tree(path), CLOCKS):
                yield Finding("clocks", path, f"line {line} uses {name}: take a Clock")


def writes(repo: Repository) -> Iterator[Finding]:
    """Bytes on disk change in base/fs.py alone; everybody else is handed an Fs."""
    for path in repo.python("src/"):
        if path == FS_HOME:
            continue
        tree = repo.tree(path)
        used = list(_names_used(tree, WRITERS))
        calls = (node for node in _nodes(tree) if isinstance(node, ast.Call))
        used += [(how, call.lineno) for call in calls if (how := _writing(call))]
        for name, line in used:
            yield Finding("writes", path, f"line {line} uses {name}: take an Fs")


# The double tears what it writes, a secret too, and writes what is left as one.
SECRET_HOMES = ("src/lapse/base/secret.py", "src/lapse/base/fs.py", "src/lapse/testing/crash_fs.py")
FS_WRITERS = frozenset({"write_file", "replace_file", "open_append"})


def secrets_on_disk(repo: Repository) -> Iterator[Finding]:
    """A secret is written as a Secret, which base/fs keeps private: nobody opens it before."""
    for path in repo.python("src/"):
        if path in SECRET_HOMES:
            continue
        calls = [node for node in _nodes(repo.tree(path)) if isinstance(node, ast.Call)]
        named = {call: _called(call) for call in calls}
        wrapped = {id(n) for c in calls if named[c] == "Secret" for n in ast.walk(c)}
        reveals = any(name == "reveal" for name in named.values())
        for call, name in named.items():
            if name == "octets" or (name == "private_bytes" and id(call) not in wrapped):
                text = f"line {call.lineno} calls {name}(): hand base/fs a Secret"
                yield Finding("secrets-on-disk", path, text)
            elif reveals and name in FS_WRITERS:
                text = f"line {call.lineno} calls {name}() where secrets are revealed"
                yield Finding("secrets-on-disk", path, text)


def _called(call: ast.Call) -> str:
    """The last part of a called name."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


TIMES_HOME = "src/lapse/base/times.py"
LAG = re.compile(r"(^|_)(lag|retention|delay|lifetime|expiration|timeout|window|max)_ms$")


def sums_of_times(repo: Repository) -> Iterator[Finding]:
    """A time and a lag are added by `after_ms`: what a setting calls "for ever" does not fit."""
    for path in repo.python("src/"):
        if path == TIMES_HOME or path.startswith("src/lapse/kernels/"):
            continue
        for node in _nodes(repo.tree(path)):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                sides: tuple[ast.expr, ...] = (node.left, node.right)
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
                sides = (node.value,)
            else:
                continue
            for name in filter(None, map(_lag_in, sides)):
                yield Finding(
                    "sums-of-times", path, f"line {node.lineno} adds {name}: use after_ms"
                )


def _lag_in(side: ast.expr) -> str:
    """The lag that is added, or half of it; "" where it is none, or is in seconds."""
    if isinstance(side, ast.BinOp) and isinstance(side.op, ast.FloorDiv):
        side = side.left
    name = _dotted(side).rpartition(".")[2]
    return name if LAG.search(name) else ""


def _names_used(tree: ast.Module, wanted: frozenset[str]) -> Iterator[tuple[str, int]]:
    """Mentions of dotted names, also under another name (`from os import rename as r`)."""
    known: dict[str, str] = {}
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                top = a.name.split(".")[0]
                known[a.asname or top] = a.name if a.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for a in node.names:
                full = f"{node.module}.{a.name}"
                known[a.asname or a.name] = full
                if full in wanted:
                    yield full, node.lineno
    for node in _nodes(tree):
        if isinstance(node, ast.Attribute) and (dotted := _dotted(node)):
            first, _, rest = dotted.partition(".")
            full = f"{known.get(first, first)}.{rest}"
            if full in wanted:
                yield full, node.lineno


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def _writing(call: ast.Call) -> str:
    """How this call writes: by a Path's method or by the mode of an open; empty if it does not."""
    function = call.func
    method = function.attr if isinstance(function, ast.Attribute) else ""
    receiver = _dotted(function.value) if isinstance(function, ast.Attribute) else ""
    if receiver.split(".")[-1].strip("_") == "fs":
        return ""
    if method in PATH_WRITERS and receiver not in {"os", "shutil"}:
        return f".{method}()"
    opener = method or (function.id if isinstance(function, ast.Name) else "")
    if opener not in {"open", "fdopen"}:
        return ""
    if receiver == "os" and opener == "open":
        flags = {n.attr for a in call.args for n in ast.walk(a) if isinstance(n, ast.Attribute)}
        return f"os.open({'|'.join(sorted(flags & OPEN_FLAGS))})" if flags & OPEN_FLAGS else ""
    position = 0 if method and receiver not in {"io", "os", "gzip", "bz2", "lzma"} else 1
    modes = call.args[position : position + 1]
    modes += [k.value for k in call.keywords if k.arg == "mode"]
    for mode in modes:
        text = mode.value if isinstance(mode, ast.Constant) else None
        if isinstance(text, str) and set(text) & set("wax+"):
            return f"open for {text!r}"
    return ""


# --- modules -------------------------------------------------------------------------------------


def dead_modules(repo: Repository) -> Iterator[Finding]:
    """Each module is imported, is named as a string by what starts it, or is an entry point."""
    modules = {_module(p): p for p in repo.python("src/")}
    used = {s.split(":")[0] for s in _project(repo).get("scripts", {}).values()}
    for path in repo.python("src/", "tools/", "benchmarks/", "tests/"):
        inside = path.startswith("src/")
        mentioned = _imports(repo.tree(path), path)
        if not path.startswith("tests/"):
            mentioned |= _strings(repo.tree(path))
        for name in mentioned:
            # Tests keep alive only what is made for tests.
            counts = not path.startswith("tests/") or name.startswith("lapse.testing")
            if counts and name in modules and not (inside and modules[name] == path):
                used.add(name)
    packages = {name.rpartition(".")[0] for name in modules}
    for name, path in modules.items():
        if name not in used and name not in packages and not name.endswith("__main__"):
            yield Finding("dead-modules", path, "nothing imports or starts it")
        elif path.endswith("__init__.py") and name not in packages and name != "lapse":
            yield Finding("dead-modules", path, "an empty package")


def only_spark_knows_spark(repo: Repository) -> Iterator[Finding]:
    """A broker must not pay for a JVM it never starts: pyspark is imported in spark/ alone."""
    for path in repo.python("src/"):
        if not path.startswith(("src/lapse/spark/", "src/pyspark_lapse/")):
            for name in _imports(repo.tree(path), path):
                if name.split(".")[0] in {"pyspark", "py4j"}:
                    yield Finding("spark-only-in-spark", path, f"imports {name}")


def _imports(tree: ast.Module, path: str) -> set[str]:
    """Modules an import statement may mean: `from a.b import c` names a.b and a.b.c."""
    names: set[str] = set()
    package = PurePosixPath(path).parts[1:-1] if path.startswith("src/") else ()
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = list(package[: len(package) - node.level + 1]) if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            names |= {base, *(f"{base}.{a.name}" for a in node.names)}
    return names


def _strings(tree: ast.Module) -> set[str]:
    """Modules named inside strings (`-m lapse.x.y`, one handed to Spark); prose does not count."""
    prose = {id(n.value) for n in _nodes(tree) if isinstance(n, ast.Expr)}
    found: set[str] = set()
    for node in _nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            found |= set(re.findall(r"lapse(?:\.\w+)+", node.value))
    return found


def _module(path: str) -> str:
    parts = PurePosixPath(path).relative_to("src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# --- texts ---------------------------------------------------------------------------------------

# Letters in brackets so that this file does not hold what it looks for.
MACHINE_PATHS = re.compile(
    r"(?<![\w.-])/(?:wor[k]|roo[t]|Use[r]s|opt/whee[l]s)/|/hom[e]/\w|/tm[p]/\w"
)
REGISTRY_HOSTS = re.compile(r"pypi[.]org|pythonhosted[.]org|repo1?[.]maven")
UPWARDS = re.compile(r"(?:\.\./)+")
UNFINISHED = re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X]|NotImplemente[d]Error)\b")


def outside_paths(repo: Repository) -> Iterator[Finding]:
    """The repository stands alone: nothing names another place on somebody's machine."""
    for path in repo.texts():
        depth = path.count("/")
        for number, line in enumerate(repo.text(path).splitlines(), 1):
            found = MACHINE_PATHS.search(line) or REGISTRY_HOSTS.search(line)
            if found:
                yield Finding("outside-paths", path, f"line {number} names {found[0]}")
            for upwards in UPWARDS.findall(line):
                if upwards.count("/") > depth:
                    yield Finding("outside-paths", path, f"line {number} leaves the repository")


def unfinished(repo: Repository) -> Iterator[Finding]:
    """What is not done is absent, or an issue; never a note in the code."""
    for path in repo.texts():
        for number, line in enumerate(repo.text(path).splitlines(), 1):
            if found := UNFINISHED.search(line):
                yield Finding("unfinished", path, f"line {number} says {found[0]}")


def long_files(repo: Repository) -> Iterator[Finding]:
    """A file is one noun."""
    for path in repo.texts():
        lines = repo.text(path).count("\n")
        if path.endswith(CODE_SUFFIXES) and lines > FILE_LINES_MAX:
            yield Finding("long-files", path, f"{lines} lines, {FILE_LINES_MAX} is the limit")


def long_functions(repo: Repository) -> Iterator[Finding]:
    """A function fits on a screen."""
    for path in repo.python(""):
        for name, node in _functions(repo.tree(path)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                key = f"{path}::{name}"
                yield Finding("long-functions", key, f"{lines} lines of {FUNCTION_LINES_MAX}")


def _functions(
    tree: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        else:
            yield from _functions(node, prefix)


# --- waiting -------------------------------------------------------------------------------------

SLEEPS = frozenset({"time.sleep", "asyncio.sleep"})


def fixed_sleeps(repo: Repository) -> Iterator[Finding]:
    """A test waits for what it needs: in a loop that looks for it, or for an event.

    A pause of a fixed length is too short on a slow machine and too long on all others. One of no
    length gives way to other tasks and is none. What another process is to execute is a string, and
    not seen.
    """
    for path in repo.python("tests/"):
        tree = repo.tree(path)
        looking = {
            id(inner)
            for loop in _nodes(tree)
            if isinstance(loop, ast.While | ast.For | ast.AsyncFor)
            for statement in loop.body
            for inner in ast.walk(statement)
        }
        for name, function in _functions(tree):
            for call in _own_nodes(function):
                if isinstance(call, ast.Call) and _dotted(call.func) in SLEEPS:
                    seconds = call.args[0] if call.args else None
                    gives_way = isinstance(seconds, ast.Constant) and not seconds.value
                    if not gives_way and id(call) not in looking:
                        key = f"{path}::{name}"
                        yield Finding("fixed-sleeps", key, f"line {call.lineno} sleeps")


def _own_nodes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """What is in a function and in none inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting.extend(ast.iter_child_nodes(node))


# --- dependencies and tests ----------------------------------------------------------------------


def undocumented_dependencies(repo: Repository) -> Iterator[Finding]:
    """ARCHITECTURE.md gives each dependency's reason and licence."""
    has = "ARCHITECTURE.md" in repo.paths
    prose = repo.text("ARCHITECTURE.md").lower() if has else ""
    groups = _pyproject(repo).get("dependency-groups", {}).values()
    for wanted in itertools.chain(_project(repo).get("dependencies", []), *groups):
        name = re.split(r"[^\w.-]", wanted)[0].lower()
        if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", prose):
            yield Finding("undocumented-dependencies", name, "not named in ARCHITECTURE.md")


_KAFKAS_NAMES = re.compile(r"^\| ([A-Z]\w+(?:, [A-Z]\w+)*) \| `([\w/]+)` \|$", re.MULTILINE)


def kafkas_names(repo: Repository) -> Iterator[Finding]:
    """ARCHITECTURE.md leads from Kafka's classes to files, and the docstrings there lead back."""
    if "ARCHITECTURE.md" not in repo.paths:
        return
    _, _, section = repo.text("ARCHITECTURE.md").partition("\n## Kafka's names\n")
    for names, where in _KAFKAS_NAMES.findall(section.partition("\n## ")[0]):
        path = f"src/lapse/{where}.py"
        said = (ast.get_docstring(repo.tree(path)) or "") if path in repo.paths else ""
        for name in names.split(", "):
            if not re.search(rf"\b{name}\b", said):
                yield Finding("kafkas-names", f"{where}: {name}", "its docstring does not name it")


def stray_tests(repo: Repository) -> Iterator[Finding]:
    """tests/unit mirrors the package: `test_<noun>.py`, or `test_<noun>_<aspect>.py`."""
    nouns: dict[str, set[str]] = {}
    for path in repo.python("src/lapse/", "tools/"):
        parts = PurePosixPath(path.removeprefix("src/lapse/")).with_suffix("").parts
        for depth, part in enumerate(parts):
            nouns.setdefault("/".join(parts[:depth]), set()).add(part)
    for path in repo.python("tests/unit/"):
        test = PurePosixPath(path).relative_to("tests/unit")
        folder = "" if test.parent.as_posix() == "." else test.parent.as_posix()
        if test.name.startswith("test_"):
            about = test.stem.removeprefix("test_")
            here = nouns.get(folder, set())
            if not any(about == noun or about.startswith(noun + "_") for noun in here):
                yield Finding("stray-tests", path, f"mirrors no module of {folder or 'lapse'}")


def borrowed_tests(repo: Repository) -> Iterator[Finding]:
    """What tests of two tiers need lies under tests/support; `tests/unit` holds tests alone."""
    for path in repo.python("tests/"):
        parts = PurePosixPath(path).parts
        if parts[1] == "unit" and not parts[-1].startswith(("test_", "conftest")):
            yield Finding("borrowed-tests", path, "a helper belongs under tests/support")
        for node in _nodes(repo.tree(path)):
            module = (
                node.module.split(".") if isinstance(node, ast.ImportFrom) and node.module else []
            )
            is_test = module[:1] == ["tests"] and module[-1].startswith("test_")
            if is_test and module[1] != parts[1]:
                yield Finding("borrowed-tests", path, f"imports {'.'.join(module)}")


@functools.cache
def _nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a file, which several rules go through."""
    return tuple(ast.walk(tree))


@functools.cache
def _read_toml(path: Path) -> Mapping[str, Any]:
    return tomllib.loads(path.read_text())


def _pyproject(repo: Repository) -> Mapping[str, Any]:
    return _read_toml(repo.root / "pyproject.toml")


def _project(repo: Repository) -> Mapping[str, Any]:
    project: Mapping[str, Any] = _pyproject(repo).get("project", {})
    return project


# --- all of them ---------------------------------------------------------------------------------

RULES: Mapping[str, Rule] = {
    "clocks": clocks,
    "writes": writes,
    "secrets-on-disk": secrets_on_disk,
    "sums-of-times": sums_of_times,
    "dead-modules": dead_modules,
    "spark-only-in-spark": only_spark_knows_spark,
    "outside-paths": outside_paths,
    "unfinished": unfinished,
    "fixed-sleeps": fixed_sleeps,
    "long-files": long_files,
    "long-functions": long_functions,
    "undocumented-dependencies": undocumented_dependencies,
    "kafkas-names": kafkas_names,
    "stray-tests": stray_tests,
    "borrowed-tests": borrowed_tests,
}


def judge(
    rule: str, findings: Iterable[Finding], allowed: Mapping[str, Mapping[str, str]]
) -> list[Finding]:
    """Findings that are not allowed, and allowances that nothing needs or that give no reason."""
    found = list(findings)
    reasons = allowed.get(rule, {})
    kept = [f for f in found if f.key not in reasons]
    needed = {f.key for f in found}
    for key, reason in reasons.items():
        if key not in needed:
            kept.append(Finding(rule, key, "is allowed but no longer needs it"))
        elif not reason.strip():
            kept.append(Finding(rule, key, "is allowed without a reason"))
    return kept
