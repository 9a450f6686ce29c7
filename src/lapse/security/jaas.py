"""`sasl.jaas.config`: who the users are, as Kafka's settings say it.

    org.apache.kafka.common.security.plain.PlainLoginModule required
        username="broker" password="…" user_alice="…" user_bob="…";

The grammar is that of Kafka's `JaasConfig`: words or quoted strings, `//` and `/* */` comments,
one login module, a semicolon at the end. Each value is a `Secret`, since any of them may be one.
Errors name the setting and the place in it, and never repeat what stands there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from lapse.base.errors import ConfigError
from lapse.base.secret import Secret

PLAIN_LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_LOGIN_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS_CONFIG = "sasl.jaas.config"

_USER = "user_"
_CONTROL_FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<word>[\w.$\-\u00A0-\uFFFF]+)
    |"(?P<double>(?:\\.|[^"\\\n])*)"
    |'(?P<single>(?:\\.|[^'\\\n])*)'
    |(?P<sign>[=;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One parsed entry.

    Attributes:
        setting: its name, for errors.
        name: the Java class that Kafka would load.
        options: what it is given.
    """

    setting: str
    name: str
    options: Mapping[str, Secret] = field(repr=False)


@dataclass(frozen=True, slots=True)
class User:
    """Whom a client logs in as."""

    user: str
    password: Secret


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    position: int
    is_sign: bool


def server_setting(listener: str, mechanism: str) -> str:
    """The setting's name on a broker, in full: `listener.name.L.M.sasl.jaas.config`."""
    return f"listener.name.{listener.lower()}.{mechanism.lower()}.{JAAS_CONFIG}"


def server_login_module(
    properties: Mapping[str, str], listener: str, mechanism: str
) -> LoginModule:
    """The login module of a broker's listener.

    Raises:
        ConfigError: it is not set (without its prefix it counts for clients only) or is wrong.
    """
    setting = server_setting(listener, mechanism)
    text = properties.get(setting)
    if text is None:
        raise ConfigError(f"{setting} is not set; {mechanism} needs it on listener {listener}")
    return parse_jaas(setting, text)


def parse_jaas(setting: str, text: str) -> LoginModule:
    """The one login module that a setting's text has.

    Raises:
        ConfigError: the text is not of this form; names the setting and the character.
    """
    tokens = list(_tokens(setting, text))
    end = _Token("", len(text), True)
    at = iter(tokens)

    def following(wanted: str, fits: Callable[[_Token], bool]) -> _Token:
        token = next(at, end)
        if not fits(token):
            raise _wrong(setting, token.position, wanted)
        return token

    name = following("a login module's class", _is_word).text
    following(
        "required, requisite, sufficient or optional",
        lambda t: not t.is_sign and t.text.lower() in _CONTROL_FLAGS,
    )
    options: dict[str, Secret] = {}
    while not (option := following("an option or ;", _is_option_or_end)).is_sign:
        following("=", lambda t: t.is_sign and t.text == "=")
        value = following("an option's value", lambda t: not t.is_sign)
        options[option.text] = Secret(value.text)
    extra = next(at, None)
    if extra is not None:
        raise _wrong(setting, extra.position, "nothing after the first login module")
    return LoginModule(setting, name, options)


def plain_users(module: LoginModule) -> dict[str, Secret]:
    """The users of a broker's PLAIN listener: its options `user_NAME`.

    Raises:
        ConfigError: it is another mechanism's login module.
    """
    _check_module(module, PLAIN_LOGIN_MODULE)
    return {
        option.removeprefix(_USER): password
        for option, password in module.options.items()
        if option.startswith(_USER)
    }


def login_of(module: LoginModule, mechanism: str) -> User:
    """Whom a client of PLAIN or SCRAM logs in as: options `username` and `password`.

    Raises:
        ConfigError: one is missing, or it is another mechanism's login module.
    """
    plain = mechanism == "PLAIN"
    _check_module(module, PLAIN_LOGIN_MODULE if plain else SCRAM_LOGIN_MODULE)
    for option in ("username", "password"):
        if not module.options.get(option):
            raise ConfigError(f"{module.setting}: option {option} is missing or empty")
    return User(module.options["username"].reveal(), module.options["password"])


def _check_module(module: LoginModule, wanted: str) -> None:
    if module.name != wanted:
        raise ConfigError(f"{module.setting}: the login module must be {wanted}")


def _tokens(setting: str, text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _wrong(setting, position, "a word, a quoted string, = or ;")
        kind = match.lastgroup or ""
        value = match[kind]
        if kind in {"double", "single"}:
            value = _ESCAPE.sub(_unescaped, value)
        if kind != "space":
            yield _Token(value, position, kind == "sign")
        position = match.end()


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    return chr(int(escape, 8)) if escape[0] in "01234567" else _ESCAPED.get(escape, escape)


def _is_word(token: _Token) -> bool:
    return not token.is_sign and bool(token.text)


def _is_option_or_end(token: _Token) -> bool:
    return _is_word(token) or token.text == ";"


def _wrong(setting: str, position: int, wanted: str) -> ConfigError:
    return ConfigError(f"{setting}: at character {position + 1}: expected {wanted}")
