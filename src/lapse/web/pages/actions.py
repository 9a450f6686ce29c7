"""Changes: clean a log soon; pause, resume, cancel rounds; delete records before an offset.

Each is shown first as what it would do, and done only when its form comes back with the name of
what it is done to, typed by hand. Brokers judge whether the user may.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lapse.base.decoding import from_json
from lapse.base.errors import ConfigError, KafkaError
from lapse.base.ids import TopicPartition
from lapse.base.typed import duration_ms, whole
from lapse.client.admin import Admin
from lapse.client.outlook import ask_all
from lapse.lifecycle.status.pauses import EVERY_LOG, Pause, pause_text
from lapse.lifecycle.status.reports import UnderWay
from lapse.lifecycle.status.wishes import Wish
from lapse.web import words
from lapse.web.asked import Asked, BadQuestion, NotFound, Page
from lapse.wire.schema.alter_rounds import CANCEL, CLEAN, PAUSE, RESUME, AlterRoundsRequest
from lapse.wire.schema.describe_outlook import FORESEEN_ROWS, DescribeOutlookRequest

DELETE = "delete-records"
OFFSET_MAX = (1 << 63) - 1
TIMEOUT_MS = 20_000


@dataclass(frozen=True, slots=True)
class Change:
    """What is asked for.

    Attributes:
        log: of which; "": of all logs.
        effects: what it would do, or has done, in words.
    """

    what: str
    title: str
    log: str
    effects: tuple[str, ...]
    warning: str = ""

    @property
    def name(self) -> str:
        """What is to be typed."""
        return self.log or "all logs"


async def look(asked: Asked) -> Page:
    """What it would do; nothing is changed."""
    change = await _foreseen(asked, _Wish.of(asked, asked.text))
    return _page(asked, change, {name: asked.text(name) for name in _FIELDS}, done=False)


async def do(asked: Asked) -> Page:
    """Do it, where the name was typed; else show it again, and why."""
    wish = _Wish.of(asked, asked.said)
    given = {name: asked.said(name) for name in _FIELDS}
    if not asked.visitor.may_change:
        raise BadQuestion(
            "this port has no logins (lapse.http.login), so it changes nothing: use the commands "
            "`lapse rounds` and `lapse delete-records`"
        )
    foreseen = await _foreseen(asked, wish)
    if asked.said("confirm") != foreseen.name:
        why = f"nothing is changed: type “{foreseen.name}” to have it done"
        return _page(asked, foreseen, given, done=False, why=why, status=400)
    carried_out = await _DO[wish.what](asked, wish)
    return _page(asked, carried_out, given, done=True)


@dataclass(frozen=True, slots=True)
class _Wish:
    what: str
    log: TopicPartition | None
    offset: int = -1
    duration_ms: int = -1
    reason: str = ""

    @property
    def logs(self) -> tuple[str, ...] | None:
        return None if self.log is None else (str(self.log),)

    @staticmethod
    def of(asked: Asked, field: Callable[[str], str]) -> _Wish:
        """Of the address, or of the form; raises BadQuestion, NotFound."""
        what: str = asked.request.path_params["what"]
        if what not in _DO:
            raise NotFound(f"{what}: allowed is {', '.join(_DO)}")
        log = TopicPartition.parse(field("log")) if field("log") else None
        if log is None and (field("log") or what in {DELETE, CLEAN}):
            raise BadQuestion(f"log={field('log')}: allowed is a name like orders-0")
        offset = _whole(field("offset"), "offset") if what == DELETE else -1
        return _Wish(what, log, offset, _duration_ms(field("for")), field("reason")[:500])


_FIELDS = ("log", "offset", "for", "reason")


def _whole(text: str, name: str) -> int:
    found = whole(text)
    if found is None or found > OFFSET_MAX:
        raise BadQuestion(f"{name}={text}: allowed is a whole number from 0")
    return found


def _duration_ms(text: str) -> int:
    """-1: until somebody resumes."""
    if not text:
        return -1
    try:
        return duration_ms("for", text)
    except ConfigError as e:
        raise BadQuestion(str(e)) from e


async def _foreseen(asked: Asked, wish: _Wish) -> Change:
    of = "all logs" if wish.log is None else str(wish.log)
    if wish.what == DELETE:
        return await _foreseen_deletion(asked, wish)
    if wish.what == CLEAN:
        return await _foreseen_round(asked, wish)
    said = {
        PAUSE: f"begin no round of {of}"
        + (" until somebody resumes" if wish.duration_ms < 0 else ", for the time that is said"),
        RESUME: f"rounds of {of} begin again when they are due",
        CANCEL: f"a round of {of} that is under way ends, and nothing of it is kept; it is due "
        "again in minutes",
    }
    warning = "what a round would have removed is late then" if wish.what == PAUSE else ""
    return Change(wish.what, _TITLES[wish.what], str(wish.log or ""), (said[wish.what],), warning)


async def _foreseen_round(asked: Asked, wish: _Wish) -> Change:
    """By each broker that has the log: what is dirty there, and what holds the rest."""
    said = await ask_all(asked.cluster, DescribeOutlookRequest(what=FORESEEN_ROWS, logs=wish.logs))
    effects = [f"broker {row['broker']}: {_would_do(row)}" for row in said.of(dict)]
    if not effects:
        raise NotFound(f"{wish.log}: no broker that answers has such a log")
    effects += [f"broker {b} does nothing: {why}" for b, why in sorted(said.silent.items())]
    return Change(CLEAN, _TITLES[CLEAN], str(wish.log), tuple(effects))


def _would_do(row: Mapping[str, Any]) -> str:
    """What a round that was asked for does to a log, by its row of the plan."""
    dirty = row.get("dirty_bytes")
    if not row.get("due"):
        what = "nothing now" if dirty else "nothing: no sealed segment is dirty"
    elif row["rule"] == "paused":
        what = "nothing while rounds are paused"
    elif dirty:
        what = f"a round cleans {words.size(dirty)} soon, whatever the dirty ratio"
    else:
        what = "a round takes out soon what was deleted"
    return f"{what}; {row['explanation']}"


async def _foreseen_deletion(asked: Asked, wish: _Wish) -> Change:
    """Reads what the groups have read, and counts the records that would go."""
    from lapse.client.deletion_plan import judge  # noqa: PLC0415  (kernels: half a second)

    assert wish.log is not None
    judged, _ = await judge(asked.cluster, {wish.log: wish.offset}, TIMEOUT_MS)
    one = judged[wish.log]
    if one.error is not None:
        raise one.error
    effects = [
        f"offsets {one.start} to {one.until - 1} are served to nobody any more, on any replica"
        if one.goes
        else f"nothing: the log begins at offset {one.start} already"
    ]
    effects += [
        f"group {name} has not read all of them: {at}"
        if isinstance(at, KafkaError)
        else f"group {name} has not read all of them: it is at offset {at}"
        for name, at in sorted((one.standing or {}).items())
    ]
    warning = "there is no way back" if one.goes else ""
    return Change(DELETE, _TITLES[DELETE], str(wish.log), tuple(effects), warning)


async def _alter(asked: Asked, wish: _Wish) -> Change:
    """On every broker, for the logs that it has."""
    request = AlterRoundsRequest(
        what=wish.what, logs=wish.logs, duration_ms=wish.duration_ms, reason=wish.reason
    )
    said = await ask_all(asked.cluster, request)
    effects = [
        f"broker {broker}: {_DONE[wish.what](line)}"
        for broker, lines in sorted(said.lines.items())
        for line in lines
    ]
    effects += [f"broker {b} goes on as before: {why}" for b, why in sorted(said.silent.items())]
    none = _NONE.get(wish.what, "")
    return Change(wish.what, _TITLES[wish.what], str(wish.log or ""), tuple(effects) or (none,))


async def _delete(asked: Asked, wish: _Wish) -> Change:
    assert wish.log is not None
    admin = Admin(await asked.cluster.any_connection(), TIMEOUT_MS, login=asked.visitor.login)
    done = (await admin.delete_records_before({wish.log: wish.offset}))[wish.log]
    if done.error is not None:
        raise done.error
    effects = (f"the lowest offset that is served is {done.low_watermark} now",)
    return Change(DELETE, _TITLES[DELETE], str(wish.log), effects)


def _page(
    asked: Asked,
    change: Change,
    given: Mapping[str, str],
    *,
    done: bool,
    why: str = "",
    status: int = 200,
) -> Page:
    values = {"here": "", "change": change, "given": given, "done": done, "why": why,
              "may_change": asked.visitor.may_change}  # fmt: skip
    return Page("action.html", values, status)


def _paused(line: str) -> str:
    pause = from_json(line, Pause)
    return f"{_logs(pause)}: {pause_text(pause)}"


def _resumed(line: str) -> str:
    return f"{_logs(from_json(line, Pause))}: rounds begin again"


def _called_off(line: str) -> str:
    one = from_json(line, UnderWay)
    return f"{one.log}: round {one.round_id} is called off"


def _wished(line: str) -> str:
    one = from_json(line, Wish)
    return f"{one.log} is cleaned soon, as far as it can be"


def _logs(pause: Pause) -> str:
    return "all logs" if pause.log == EVERY_LOG else pause.log


_NONE = {
    RESUME: "nothing of that was paused",
    CANCEL: "no such round is under way",
    CLEAN: "no broker has such a log",
}
_TITLES = {
    CLEAN: "Clean soon",
    PAUSE: "Pause rounds",
    RESUME: "Resume rounds",
    CANCEL: "Cancel rounds",
    DELETE: "Delete records before an offset",
}
_DONE: Mapping[str, Callable[[str], str]] = {
    PAUSE: _paused,
    RESUME: _resumed,
    CANCEL: _called_off,
    CLEAN: _wished,
}
_DO: Mapping[str, Callable[[Asked, _Wish], Awaitable[Change]]] = {
    CLEAN: _alter,
    PAUSE: _alter,
    RESUME: _alter,
    CANCEL: _alter,
    DELETE: _delete,
}
