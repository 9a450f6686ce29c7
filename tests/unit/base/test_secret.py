"""A secret shows in nothing that is printed, logged or dumped."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import traceback
from dataclasses import asdict, dataclass

import msgspec
import pytest

from lapse.base.secret import HIDDEN, Secret

VALUE = "pa55-wörd"


@dataclass(frozen=True)
class Holder:
    name: str
    password: Secret


HELD = Holder("alice", Secret(VALUE))


@pytest.mark.parametrize(
    "shown",
    [
        repr(HELD), str(HELD), f"{HELD.password}", f"{HELD.password!r:>20}", f"{HELD.password:>20}",
        str([HELD.password]), str({HELD.password: 1}), str(asdict(HELD)),
        json.dumps({"password": HELD.password}, default=str),
        msgspec.json.encode(HELD, enc_hook=str).decode(),
        str(ValueError("wrong", HELD.password)),
    ],
)  # fmt: skip
def test_what_shows_it_shows_that_it_is_hidden(shown: str) -> None:
    assert HIDDEN in shown
    assert VALUE not in shown
    assert "pa55" not in shown


@pytest.mark.parametrize(
    "dump", [json.dumps, msgspec.json.encode, msgspec.msgpack.encode, pickle.dumps, vars, iter, len]
)
def test_what_would_take_it_apart_is_refused(dump: object) -> None:
    assert callable(dump)
    with pytest.raises(TypeError) as refused:
        dump(HELD.password)
    assert VALUE not in str(refused.value)


def test_logs_and_tracebacks_hide_it(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("t").warning("login of %s with %r", HELD, HELD.password)
    try:
        raise RuntimeError("login failed", HELD)
    except RuntimeError:
        trace = traceback.format_exc()
    for shown in (caplog.text, trace):
        assert HIDDEN in shown
        assert VALUE not in shown


def test_only_reveal_gives_it() -> None:
    assert HELD.password.reveal() == VALUE
    assert copy.deepcopy(HELD).password.reveal() == copy.copy(HELD.password).reveal() == VALUE


def test_equality() -> None:
    assert Secret(VALUE) == Secret(VALUE)
    assert Secret(VALUE) != Secret(VALUE + "x")
    assert Secret(VALUE) != VALUE
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert Secret(VALUE).matches(VALUE)
    assert not Secret(VALUE).matches("")
    assert not Secret("").matches("\ud800")
    assert (bool(Secret("")), bool(Secret("x"))) == (False, True)
