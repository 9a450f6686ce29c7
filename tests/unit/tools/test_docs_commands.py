"""Commands in the docs: what is found on a page, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import docs_commands
from tools.tidy import Repository

PAGE = """\
Look first: `lapse plan DIR --count` and `lapse rounds
show`, or `lapse …`; not `plan --nope`.

```
$ .venv/bin/lapse plan /data --json | jq .   # a comment
partition  lapse plan --no-such
lapse clean /data \\
    --to copy && lapse verify --before a --after b
$ … lapse plan
it's printed
```

```text
  lapse up --data DATA --port 0   any free port
  lapse copy --from a:1 --to b:1 --topic t \\
      --checkpoint C
```

```console
$ lapse topic list
lapse topic nope
```

```python
lapse = spark.read
```
"""


def found(text: str) -> list[str]:
    return [" ".join(words) for words in docs_commands.in_blocks(text)]


def test_commands_are_told_from_what_they_print() -> None:
    assert found(PAGE) == [
        "plan /data --json",
        "clean /data --to copy",
        "verify --before a --after b",
        "up --data DATA --port 0",
        "copy --from a:1 --to b:1 --topic t --checkpoint C",
        "topic list",
    ]
    spans = [" ".join(words) for words in docs_commands.in_sentences(PAGE)]
    assert spans == ["plan DIR --count", "rounds show", "…"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```\nlapse plam DIR\n```\n", "there is no command plam"),
        ("```\nlapse plan DIR --cuont\n```\n", "no option --cuont"),
        ("```\n$ lapse copy --from a:1 --to b:1\n```\n", "--topic, --checkpoint"),
        ("```\nlapse copy --batch-offsets many\n```\n", "--batch-offsets: invalid"),
        ("```console\n$ lapse topic delet t\n```\n", "delet: there is no such"),
        ("Run `lapse plam`.\n", "there is no command plam"),
        ("Run `lapse rounds stop`.\n", "rounds has no verb stop"),
        ("Run `lapse plan --cuont`.\n", "plan has no option --cuont"),
        ("Run `lapse rounds show --wach`.\n", "rounds has no option --wach"),
    ],
)
def test_what_nobody_can_run_is_named(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text)
    (tmp_path / docs_commands.HISTORY).write_text(text)
    [wrong] = docs_commands.wrong(Repository.at(tmp_path))
    assert wrong.startswith("page.md: ")
    assert why in wrong


def test_what_is_right_is_not(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    assert not list(docs_commands.wrong(Repository.at(tmp_path)))
