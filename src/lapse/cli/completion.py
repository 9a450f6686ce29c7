"""`lapse completion SHELL`: what bash, zsh or fish needs to complete commands, verbs and options.

The script is made once, from the parsers, and asks no Lapse while somebody types. After an option
that takes a value it offers the words that are allowed, or files.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lapse.base.extras import MissingExtra, needed_for
from lapse.cli.parser import verbs_of

EXAMPLES = """\
examples:
  source <(lapse completion bash)                              # this shell; or in ~/.bashrc
  lapse completion bash > ~/.local/share/bash-completion/completions/lapse
  source <(lapse completion zsh)                               # after compinit, in ~/.zshrc
  lapse completion fish > ~/.config/fish/completions/lapse.fish
"""


@dataclass(frozen=True, slots=True)
class Option:
    """An option as it is typed.

    Attributes:
        names: all of its spellings.
        takes_value: a word follows.
        choices: the words that may follow; empty where any may.
    """

    names: tuple[str, ...]
    about: str
    takes_value: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where somebody types.

    Attributes:
        path: the commands before: none, `topic`, or `topic create`.
        verbs: what may follow, with what it is about.
        words: what may stand for an argument; empty where any word, or a file, may.
    """

    path: str
    verbs: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]
    words: tuple[str, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which shell."""
    parser.add_argument("shell", metavar="SHELL", choices=sorted(_SHELLS), help="|".join(_SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    print(_SHELLS[args.shell](list(places())), end="")
    return 0


def places() -> Iterator[Place]:
    """All places, of every command that can be imported here."""
    from lapse.cli.main import COMMANDS, build_parser  # noqa: PLC0415  (which imports this one)

    yield _place("", build_parser())
    for name in COMMANDS:
        try:
            with needed_for(f"lapse {name}"):
                parser = build_parser(name)
        except MissingExtra:
            continue  # its name is offered, and it says what to install
        yield from _places(name, verbs_of(parser)[name])


def _places(path: str, parser: argparse.ArgumentParser) -> Iterator[Place]:
    yield _place(path, parser)
    for verb, below in verbs_of(parser).items():
        yield from _places(f"{path} {verb}", below)


def _place(path: str, parser: argparse.ArgumentParser) -> Place:
    options: list[Option] = []
    verbs: list[tuple[str, str]] = []
    words: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            verbs += [(one.dest, _line(one.help)) for one in action._choices_actions]
        elif action.help == argparse.SUPPRESS:
            continue
        elif action.option_strings:
            options.append(_option(action, parser))
        else:
            words += _choices(action)
    return Place(path, tuple(verbs), tuple(options), tuple(words))


def _option(action: argparse.Action, parser: argparse.ArgumentParser) -> Option:
    about = parser._get_formatter()._expand_help(action) if action.help else ""
    return Option(tuple(action.option_strings), _line(about), action.nargs != 0, _choices(action))


def _choices(action: argparse.Action) -> tuple[str, ...]:
    return tuple(str(choice) for choice in action.choices or ())


def _line(text: str | None) -> str:
    """What help says, as one line."""
    return " ".join((text or "").split())


# --- shells --------------------------------------------------------------------------------------

_BASH = """\
# lapse's commands, verbs and options for {shell}; made by `lapse completion {shell}`.
_lapse() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
    local path="" verbs="" options="" i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$path/${{COMP_WORDS[i]}}" in
            {steps}) path="${{path:+$path }}${{COMP_WORDS[i]}}" ;;
        esac
    done
    case "$path/$prev" in
{values}
    esac
    case "$path" in
{places}
    esac
    if [[ $cur == -* ]]; then verbs=$options; fi
    COMPREPLY=($(compgen -W "$verbs" -- "$cur"))
}}
complete -o default -F _lapse lapse
"""
_ZSH_FIRST = "autoload -Uz bashcompinit && bashcompinit\n"


def _steps(found: list[Place]) -> list[str]:
    """What leads from one place to another, quoted."""
    return [shlex.quote(f"{place.path}/{verb}") for place in found for verb, _ in place.verbs]


def _bash(found: list[Place], shell: str = "bash") -> str:
    values, cases = [], []
    for place in found:
        for option in place.options:
            if option.takes_value:
                pattern = "|".join(shlex.quote(f"{place.path}/{name}") for name in option.names)
                offered = f'COMPREPLY=($(compgen -W {_words(option.choices)} -- "$cur")); '
                values.append(f"        {pattern}) {offered if option.choices else ''}return ;;")
        names = [name for option in place.options for name in option.names]
        verbs = [*(verb for verb, _ in place.verbs), *place.words]
        cases.append(
            f"        {shlex.quote(place.path)}) verbs={_words(verbs)} options={_words(names)} ;;"
        )
    steps = "|".join(_steps(found))
    return _BASH.format(shell=shell, steps=steps, values="\n".join(values), places="\n".join(cases))


def _zsh(found: list[Place]) -> str:
    """What bash gets, which zsh can run."""
    return _ZSH_FIRST + _bash(found, "zsh")


_FISH = """\
# lapse's commands, verbs and options for fish; made by `lapse completion fish`.
function __lapse_at
    set -l at
    for word in (commandline -opc)[2..-1]
        if contains -- "$at/$word" {steps}
            set -a at $word
        end
    end
    test "$at" = "$argv"
end
"""


def _fish(found: list[Place]) -> str:
    lines = []
    for place in found:
        start = f"complete -c lapse -n {shlex.quote(f'__lapse_at {place.path}')}"
        for verb, about in place.verbs:
            lines.append(f"{start} -f -a {verb} -d {_fish_quoted(about)}")
        if place.words:
            lines.append(f"{start} -f -a {_words(place.words)}")
        lines += [f"{start} {_fish_option(o)} -d {_fish_quoted(o.about)}" for o in place.options]
    return _FISH.format(steps=" ".join(_steps(found))) + "\n".join(lines) + "\n"


def _fish_option(option: Option) -> str:
    parts = [
        f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names
    ]
    if option.choices:
        parts.append(f"-x -a {_words(option.choices)}")
    elif option.takes_value:
        parts.append("-r")
    return " ".join(parts)


def _fish_quoted(text: str) -> str:
    """Between single quotes, where fish knows two escapes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _words(words: list[str] | tuple[str, ...]) -> str:
    return "'" + " ".join(words) + "'"


_SHELLS: Mapping[str, Callable[[list[Place]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
