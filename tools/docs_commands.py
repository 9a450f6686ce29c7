"""`lapse` commands in the docs: each is one that there is, with options that it has.

`wrong` names those that are not; tests/test_rules.py holds that there are none. In a block of
commands the whole command must be accepted by the parser that runs it; in a sentence, where most of
a command is left out, its name, its verb and its options. Whether commands do what a page says
is for tests that run them (compat/test_quickstart, compat/test_how_tos,
compat/test_reference_pages, spark/test_pages).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import re
import shlex
from collections.abc import Iterator, Sequence

from lapse.cli.main import COMMANDS, build_parser
from lapse.cli.parser import below, verbs_of
from tools.tidy import Repository

HISTORY = "CHANGELOG.md"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`(lapse [^`]+)`")
_NOT_SHELL = {"python", "sql", "mermaid", "properties", "toml", "json", "yaml"}
_ENDS = {"|", ">", ">>", "2>", "<", "&&", ";", "&"}
_ELLIPSES = {"…", "..."}


def wrong(repo: Repository) -> Iterator[str]:
    """`page: command: why` of each command that nobody can run."""
    for page in repo.paths:
        if page.endswith(".md") and page != HISTORY:
            text = repo.text(page)
            for command in in_blocks(text):
                why = refused(command)
                if why:
                    yield f"{page}: {shlex.join(command)}: {why}"
            for span in in_sentences(text):
                why = unknown_in(span)
                if why:
                    yield f"{page}: {shlex.join(span)}: {why}"


def in_blocks(text: str) -> Iterator[list[str]]:
    """The words of each `lapse` command in blocks of a shell's lines, without `lapse`."""
    for language, block in _FENCE.findall(text):
        if language in _NOT_SHELL:
            continue
        for line in re.sub(r" *\\\n *", " ", block).splitlines():
            if language == "text":  # help: of an example what stands before the explanation
                yield from _commands_in(re.split(r"  +", line.strip())[0])
            elif language != "console" or line.startswith("$ "):
                yield from _commands_in(line.removeprefix("$ "))


def _commands_in(line: str) -> Iterator[list[str]]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a line of what is printed
        return
    for n, word in enumerate(words):
        begins = n == 0 or words[n - 1] in _ENDS or words[n - 1] == "-m"
        if begins and (word == "lapse" or word.endswith("/bin/lapse")):
            rest = words[n + 1 :]
            end = next((m for m, one in enumerate(rest) if one in _ENDS), len(rest))
            if rest[:end] and not _ELLIPSES & set(rest[:end]):
                yield rest[:end]


def in_sentences(text: str) -> Iterator[list[str]]:
    """The words of each command that is named outside of blocks, without `lapse`."""
    for span in _SPAN.findall(_FENCE.sub("", text)):
        with contextlib.suppress(ValueError):  # an apostrophe in it: cut by a line's end
            yield shlex.split(span.replace("\n", " "))[1:]


def refused(words: Sequence[str]) -> str:
    """What the parser says to a whole command; empty where it takes it."""
    if words[0] not in COMMANDS:
        return "" if words[0].startswith("-") else f"there is no command {words[0]}"
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            _parser(words[0]).parse_args(words)
        except SystemExit as e:
            return said.getvalue().strip() if e.code else ""
    return ""


def unknown_in(words: Sequence[str]) -> str:
    """Which command, verb or option of a part of a command there is not; empty where all are."""
    name = words[0].rstrip("`.,")
    if name not in COMMANDS:
        is_name = name.isidentifier() and name.islower()
        return f"there is no command {name}" if is_name else ""
    parser = verbs_of(_parser(name))[name]
    verbs = verbs_of(parser)
    if verbs and len(words) > 1 and re.fullmatch(r"[a-z-]+", words[1]) and words[1] not in verbs:
        return f"{name} has no verb {words[1]}"
    all_of_it = (parser, *below(parser))
    known = {text for one in all_of_it for action in one._actions for text in action.option_strings}
    for word in words[1:]:
        option = word.partition("=")[0].rstrip(",")
        if re.fullmatch(r"--?[a-z][a-z-]*", option) and option not in known:
            return f"{name} has no option {option}"
        if word == "--":
            break
    return ""


@functools.cache
def _parser(name: str) -> argparse.ArgumentParser:
    return build_parser(name)
