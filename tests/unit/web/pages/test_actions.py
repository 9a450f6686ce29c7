"""Changes: first what they would do, then done, by who may and means it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.lifecycle.status.pauses import EVERY_LOG, Pause, pause, read_pauses
from lapse.lifecycle.status.wishes import read_wishes
from lapse.security.acls import CLUSTER_NAME, Operation, ResourceType
from tests.support.broker.running import batch_of, connect, create, list_offset, produce
from tests.support.broker.secured import SECURED, WITH_ACLS, allow, set_acls
from tests.support.lifecycle.rounds import overwritten, write
from tests.support.web.pages import FORM, Answer, ask, basic, node_with_pages
from tests.unit.broker.http.test_cleaner_metrics import filled

ALICE = basic("alice", "b")


async def log_start(connection: BrokerConnection) -> int:
    return (await list_offset(connection, "t", -2)).offset


async def do(node: Node, what: str, login: dict[str, str] = ALICE, **fields: str) -> Answer:
    headers = {**FORM, **login}
    return await ask(node, f"/ui/actions/{what}", headers, method="POST", body=urlencode(fields))


async def test_rounds_are_paused_and_go_on_by_who_types_their_name(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path, SECURED) as node:
        await create(node, "t")
        look = await ask(node, "/ui/actions/pause?log=t-0", ALICE)
        assert "begin no round of t-0 until somebody resumes" in look.text
        assert "what a round would have removed is late then" in look.text
        assert "Type <code>t-0</code>" in look.text
        for typed in ("", "t-1", "all logs"):
            refused = await do(node, "pause", log="t-0", confirm=typed)
            assert refused.status == 400
            assert "type “t-0” to have it done" in refused.text
        now_ms = node.services.clock.now_ms()
        assert list(read_pauses(tmp_path, now_ms)) == []
        fields = {"log": "t-0", "for": "2h", "reason": "a <disk>"}
        done = await do(node, "pause", confirm="t-0", **fields)
        assert done.status == 200
        assert "Done." in done.text
        assert "a &lt;disk&gt;" in done.text
        (kept,) = read_pauses(tmp_path, now_ms)
        assert (kept.log, kept.reason) == ("t-0", "a <disk>")
        assert kept.until_ms is not None
        assert 7_200_000 <= kept.until_ms - now_ms < 7_300_000
        every = await do(node, "resume", confirm="all logs")
        assert "t-0: rounds begin again" in every.text
        assert list(read_pauses(tmp_path, now_ms)) == []
        assert "nothing of that was paused" in (await do(node, "resume", confirm="all logs")).text
        nothing = await do(node, "cancel", confirm="all logs")
        assert "no such round is under way" in nothing.text


async def test_a_paused_log_is_said_to_be_paused_wherever_it_is_told_why(tmp_path: Path) -> None:
    """Asked for or not, it gets no round until the pause ends."""
    async with node_with_pages(tmp_path) as node:
        await filled(node, "a")
        foreseen = "/ui/actions/clean?log=a-0"
        assert "a round cleans" in (await ask(node, foreseen)).text
        now_ms = node.services.clock.now_ms()
        pause(RealFs(), tmp_path, [], Pause(EVERY_LOG, now_ms, None, "a disk is replaced"))
        assert "nothing while rounds are paused; paused since" in (await ask(node, foreseen)).text
        for path in ("/ui/topics/a/0", "/ui/topics/a"):
            assert "paused since" in (await ask(node, path)).text, path


async def test_a_wish_for_deleted_records_is_foreseen(tmp_path: Path) -> None:
    """With `clean` they leave their file, too, in a log that is not compacted."""
    async with node_with_pages(tmp_path) as node:
        await create(node, "a", cleanup_policy="delete", internal_segment_bytes="1000")
        log = node.services.partitions.get(TopicPartition("a", 0))
        write(log, overwritten(), node.services.clock.now_ms())
        log.roll(node.services.clock.now_ms())
        log.delete_records(5)
        page = await ask(node, "/ui/actions/clean?log=a-0")
        assert "a round takes out soon what was deleted" in page.text


async def test_a_log_is_asked_to_be_cleaned(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path, SECURED) as node:
        await create(node, "t", cleanup_policy="compact")
        look = await ask(node, "/ui/actions/clean?log=t-0", ALICE)
        assert "nothing: no sealed segment is dirty" in look.text
        done = await do(node, "clean", log="t-0", confirm="t-0")
        assert "t-0 is cleaned soon" in done.text
        assert [*read_wishes(tmp_path, node.services.clock.now_ms())] == ["t-0"]
        assert (await ask(node, "/ui/actions/clean?log=t-7", ALICE)).status == 404
        assert (await ask(node, "/ui/actions/clean", ALICE)).status == 400


async def test_records_are_deleted_once_their_partition_is_typed(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path, SECURED) as node:
        await create(node, "t")
        async with await connect(node) as connection:
            await produce(connection, "t", (0, batch_of(b"1", b"2", b"3")))
            look = await ask(node, "/ui/actions/delete-records?log=t-0&offset=2", ALICE)
            assert "offsets 0 to 1 are served to nobody any more" in look.text
            assert "there is no way back" in look.text
            fields = {"log": "t-0", "offset": "2"}
            assert (await do(node, "delete-records", confirm="t", **fields)).status == 400
            assert await log_start(connection) == 0
            done = await do(node, "delete-records", confirm="t-0", **fields)
            assert "the lowest offset that is served is 2 now" in done.text
            assert await log_start(connection) == 2
            again = await ask(node, "/ui/actions/delete-records?log=t-0&offset=1", ALICE)
            assert "nothing: the log begins at offset 2 already" in again.text
            beyond = await do(node, "delete-records", confirm="t-0", log="t-0", offset="99")
            assert beyond.status != 200
            assert "OFFSET_OUT_OF_RANGE" in beyond.text


async def test_without_logins_nothing_is_changed(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path) as node:
        await create(node, "t")
        look = await ask(node, "/ui/actions/pause?log=t-0")
        assert "<code>lapse rounds pause</code>" in look.text
        assert "<form method" not in look.text
        refused = await do(node, "pause", {}, log="t-0", confirm="t-0")
        assert refused.status == 400
        assert "it changes nothing" in refused.text
        assert list(read_pauses(tmp_path, node.services.clock.now_ms())) == []


async def test_brokers_judge_who_may(tmp_path: Path) -> None:
    """Alice may pause; bob may delete records of his topic; neither may do both."""
    async with node_with_pages(tmp_path, WITH_ACLS) as node:
        await create(node, "t")
        async with await connect(node) as connection:
            await produce(connection, "t", (0, batch_of(b"1", b"2")))
        of_topic = (Operation.DESCRIBE, Operation.DELETE)
        await set_acls(
            node,
            [
                allow(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME),
                *(allow(one, ResourceType.TOPIC, "t", "bob") for one in of_topic),
            ],
        )
        bob = basic("bob", "c")
        pause = {"log": "t-0", "confirm": "t-0"}
        assert (await do(node, "pause", ALICE, **pause)).status == 200
        assert (await do(node, "resume", bob, **pause)).status == 403
        delete = {**pause, "offset": "1"}
        assert (await do(node, "delete-records", ALICE, **delete)).status in {403, 404}
        assert (await do(node, "delete-records", bob, **delete)).status == 200
