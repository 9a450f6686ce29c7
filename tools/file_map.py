"""What is where: writes `docs/internals/files.md` and `rooms.md` from the code, or checks them.

`make map` writes the pages; with `--check` it writes nothing and exits 1 where one is another. The
one has every module in a line, the other draws who imports whom: packages, and rooms within them.
The line is the first sentence of the module's docstring, a room's that of its `__init__.py`.
"""

from __future__ import annotations

import argparse
import ast
import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "lapse"
PAGE = ROOT / "docs" / "internals" / "files.md"
ROOMS = PAGE.with_name("rooms.md")
COMMAND = "make map"
# From the bottom up, as the layers are.
PARTS = (
    *("base", "kernels", "records", "wire", "security", "log", "client", "coordination"),
    *("lifecycle", "replication", "metadata", "broker", "spark", "web", "demo", "cli", "testing"),
)
ONE_LINE = frozenset({"wire/schema"})  # a file for each API: named by their folder
_TOP = "../" * 2
_HEAD = f"""# Every file

One line for each module, the first sentence of its docstring; written by `{COMMAND}`, so change the
docstring. From the bottom up: imports only point down, within a package too
([layers]({_TOP}ARCHITECTURE.md#the-layers)). Who knows Kafka's classes begins with
[Kafka's names]({_TOP}ARCHITECTURE.md#kafkas-names).
"""


def sentence(docstring: str) -> str:
    """The first one, on one line."""
    words = " ".join(docstring.partition("\n\n")[0].split())
    end = words.find(". ")
    return (words if end < 0 else words[:end]).removesuffix(".")


def page() -> str:
    """The whole page."""
    found = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert found == set(PARTS), f"packages that are not listed: {found ^ set(PARTS)}"
    return _HEAD + "".join(line for part in PARTS for line in _part(part))


def _part(part: str) -> Iterator[str]:
    folder = PACKAGE / part
    yield f"\n## {part}\n\n{_said(folder / '__init__.py')}.\n\n| file | |\n|---|---|\n"
    for path in sorted(folder.rglob("*.py"), key=lambda p: (p.parent != folder, p)):
        name = path.relative_to(folder).with_suffix("").as_posix()
        room = path.relative_to(PACKAGE).parent.as_posix()
        if room in ONE_LINE and path.name != "__init__.py":
            continue
        if path.name == "__init__.py":
            if path.parent != folder:
                yield f"| **`{path.parent.relative_to(folder).as_posix()}/`** | {_said(path)} |\n"
            continue
        yield f"| `{name}` | {_said(path)} |\n"


@functools.cache
def _tree(path: Path, _changed_ns: int) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _said(path: Path) -> str:
    told = ast.get_docstring(_tree(path, path.stat().st_mtime_ns)) or ""
    return sentence(told).replace("|", "\\|")


# --- the picture ----------------------------------------------------------------------------------

_ROOMS_HEAD = f"""# The rooms

Who imports whom, drawn from the imports themselves by `{COMMAND}`, without what follows from other
arrows. Each points down; import-linter holds that (`pyproject.toml`), and there is no circle.
What each room is for: [every file](files.md).
"""


# A command line, but for a session: it stands beside `cli`, whatever package its name puts it in.
_FACE = "lapse.spark.actions"


def rooms_page() -> str:
    """The whole page: the packages, then the rooms of each that has some."""
    modules = {_dotted(path): path for path in PACKAGE.rglob("*.py")}
    imported = {name: set(_imports(path, modules)) for name, path in modules.items()}
    titles = {
        "lapse": "The packages",
        **{f"lapse.{part}": part for part in PARTS if _has_rooms(part)},
    }
    arrows = {title: _arrows(imported, above) for above, title in titles.items()}
    drawn = [_drawing(title, some) for title, some in arrows.items() if some]
    return _ROOMS_HEAD + "".join(drawn)


def _has_rooms(part: str) -> bool:
    return any((path / "__init__.py").exists() for path in (PACKAGE / part).iterdir())


def _dotted(path: Path) -> str:
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _imports(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(_tree(path, path.stat().st_mtime_ns)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in modules else node.module


def _arrows(imported: Mapping[str, set[str]], above: str) -> set[tuple[str, str]]:
    """Between what lies right below a package: its rooms, and the modules beside them."""
    depth = above.count(".") + 1

    def room(name: str) -> str:
        if above == "lapse" and name.startswith(_FACE):
            return _FACE.rpartition(".")[2]
        parts = name.split(".")
        return parts[depth] if len(parts) > depth and name.startswith(f"{above}.") else ""

    pairs = {(room(name), room(other)) for name, others in imported.items() for other in others}
    return {(one, other) for one, other in pairs if one and other and one != other}


def _drawing(title: str, arrows: set[tuple[str, str]]) -> str:
    """Without arrows that others make plain: a → c where a → b → c."""
    below: dict[str, set[str]] = {}
    for one, other in arrows:
        below.setdefault(one, set()).add(other)

    def reach(name: str) -> set[str]:
        return {far for near in below.get(name, ()) for far in (near, *reach(near))}

    plain = [
        (one, other)
        for one, other in sorted(arrows)
        if not any(other in reach(near) for near in below[one] if near != other)
    ]
    lines = "".join(f"    {one} --> {other}\n" for one, other in plain)
    return f"\n## {title}\n\n```mermaid\nflowchart TD\n{lines}```\n"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it differs")
    check: bool = parser.parse_args(argv).check
    wanted = {PAGE: page(), ROOMS: rooms_page()}
    for path, text in wanted.items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            print(f"{path.relative_to(ROOT)} is not what the code says: {COMMAND}")
            return 1
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
