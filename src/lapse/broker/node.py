"""A node: one broker with its log directories, store, listeners and chores, wired together.

The only place where the parts of `broker` meet. Order of starting: lock the directories, open the
store, open the logs, warm the kernels up, then listen; stopping is the reverse, and leaves the
clean-shutdown marker only where every log was closed in order.

A log directory that fails stops no other; when the last one has failed, the node stops.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from lapse.base.config import BrokerConfig
from lapse.base.errors import StorageError
from lapse.base.ids import TopicPartition
from lapse.base.log_dirs import log_dirs
from lapse.broker.access.acl_store import Access, acl_settings
from lapse.broker.access.authentication import HTTP, entrance, http_certificates
from lapse.broker.access.broker_login import broker_login
from lapse.broker.access.certificates import CertificateWatch
from lapse.broker.access.listeners import (
    broker_listener,
    http_address,
    kafka_listeners,
    reached_at,
)
from lapse.broker.api.table import ADVERTISED
from lapse.broker.cluster import Cluster, Connect
from lapse.broker.control.control import Control
from lapse.broker.control.remote import RemoteServices
from lapse.broker.control.server import ControlServer
from lapse.broker.coordinators.coordinator_log import Parts
from lapse.broker.coordinators.groups import GroupCoordinator, settings_of
from lapse.broker.coordinators.transaction_markers import MarkerWriter
from lapse.broker.coordinators.transactions import Transactions
from lapse.broker.coordinators.transactions import settings_of as transaction_settings
from lapse.broker.http import metrics
from lapse.broker.http.cleaner_metrics import CleanerCollector
from lapse.broker.http.login import HttpLogin
from lapse.broker.http.rounds import RoundPages
from lapse.broker.http.server import Health, HttpServer, Pages, app
from lapse.broker.limits.client_quotas import ClientQuotas
from lapse.broker.limits.connection_rates import ConnectionRates
from lapse.broker.limits.connections import allowed_bytes, connections_allowed
from lapse.broker.limits.log_lines import LogLines
from lapse.broker.limits.memory import AnswerBytes, RequestBytes
from lapse.broker.limits.quotas import Quotas, Windows
from lapse.broker.limits.replication_quotas import (
    BETWEEN_DIRECTORIES,
    CopyQuota,
    ReplicationQuotas,
)
from lapse.broker.logs.counters import Counters
from lapse.broker.logs.disk import THREADS, DiskThreads
from lapse.broker.logs.fetch_sessions import FetchSessions
from lapse.broker.logs.housekeeping import Housekeeping
from lapse.broker.logs.members import Members
from lapse.broker.logs.partitions import Partitions
from lapse.broker.logs.purgatory import Purgatory
from lapse.broker.logs.rereading import Rereading
from lapse.broker.logs.topic_pauses import TopicPauses
from lapse.broker.logs.topics import Topics
from lapse.broker.net.server import Server
from lapse.broker.replicas.leading import Surroundings
from lapse.broker.replicas.moves import Moves
from lapse.broker.replicas.peers import Peers, ask_for_topic
from lapse.broker.replicas.replicas import Replicas
from lapse.broker.request.context import Services
from lapse.broker.warm_up import warm_up
from lapse.lifecycle import clock_guard
from lapse.lifecycle.clock_guard import ClockGuard
from lapse.lifecycle.outlook.erasures import Erasures
from lapse.log.env import LogEnv
from lapse.metadata.features import Levels, agreed, protocol_of, require_fit
from lapse.metadata.sqlite import STORE, SqliteStore
from lapse.metadata.store import MetadataStore
from lapse.metadata.tree_store import QUOTAS_CHANGED, TOPICS_CHANGED, USERS_CHANGED
from lapse.metadata.zookeeper import ZooKeeperTree
from lapse.metadata.zookeeper_access import access_of
from lapse.security.attempts import LoginAttempts
from lapse.security.certificates import Certificates

logger = logging.getLogger(__name__)

SESSION_ID_END = 1 << 31
LEAVE_SECONDS_MAX = 10.0


class Node:
    """One broker. `start`, then `wait_for_stop_request`, then `stop`, which is safe at any time.

    Args:
        connect: a session with an ensemble.
        pages: for people, at the HTTP port.
        threads: what waits for disks: a name, and how many there are at most.

    Attributes:
        services: its parts, once started.
        is_serving: whether clients are answered.
        metrics: what it tells Prometheus, once started.
    """

    def __init__(
        self,
        config: BrokerConfig,
        env: LogEnv,
        *,
        connect: Connect | None = None,
        pages: Pages | None = None,
        threads: Callable[[str, int], DiskThreads] = DiskThreads,
    ) -> None:
        self._config, self._threads = config, threads
        self._pages = pages
        self._env = replace(env, clock_jump_max_ms=config.clock_jump_max_ms)
        self._stop_requested = asyncio.Event()
        self._running = AsyncExitStack()
        self.is_serving = False
        self._listeners = kafka_listeners(config)
        acl_settings(config.security)  # what is wrong with them is said before anything is opened
        self._by_address = connections_allowed(config)
        self._http = http_address(config)
        self._log_dirs = log_dirs(config)
        self._members = Members(config.node_id, config.broker_rack or None)
        listener = broker_listener(config, self._listeners)
        login = partial(broker_login, config, listener)
        if config.zookeeper_connect:  # what is wrong with it is said before anything is opened
            login()
            access = access_of(config.zookeeper, config.zookeeper_connect)
            self._connect: Connect = connect or partial(ZooKeeperTree, access=access)
        self._peers = Peers(self._members, listener.name, env.clock, login)
        self._guard = ClockGuard(
            env.fs, env.clock, self._log_dirs[0], config.clock_jump_max_ms, clock_guard.BROKER
        )
        self._cluster: Cluster | None = None
        self._when_offline: Callable[[], None] = lambda: None
        self._control: Control
        self.services: Services
        self.metrics: CollectorRegistry

    def ready_line(self) -> str:
        """What a process says when it serves; scripts wait for it."""
        http = "" if self._http is None else f" http={self._http}"
        ready = f"ready kafka={self._listeners[0].address}{http}"
        if len(self._listeners) == 1:
            return ready
        return f"{ready} listeners={','.join(map(str, self._listeners))}"

    def request_stop(self) -> None:
        """Ask `wait_for_stop_request` to return; fit for a signal handler."""
        self._stop_requested.set()

    async def wait_for_stop_request(self) -> None:
        """Return once a stop was requested.

        Raises StorageError where no directory is left, and what the cluster refuses the broker for.
        """
        await self._stop_requested.wait()
        if self._cluster is not None and self._cluster.refused is not None:
            raise self._cluster.refused
        self._require_directories(self.services.partitions)

    async def start(self) -> None:
        """Serve; raises LapseError if that cannot be (`stop` is due all the same)."""
        self.services = services = await self._open()
        await services.disk.run(warm_up)
        certificates = await self._watch_certificates(services)
        for one in services.entrances:
            server = Server(services, one)
            self._running.push_async_callback(server.stop)
            await server.start()
        if self._cluster is not None:
            await self._cluster.start(reached_at(self._listeners))
        control = self._control
        socket = ControlServer(control, self._log_dirs[0])
        self._running.push_async_callback(socket.stop)
        await socket.start()
        self._housekeeping = housekeeping = Housekeeping(
            services.partitions, services.clock, self._config, services.counters,
            self._threads("lapse-housekeeping", 1),
            lambda _: self._guard.look(),
            self._guard.keep,
        )  # fmt: skip
        self._running.push_async_callback(housekeeping.stop)
        housekeeping.start()
        cleaner = CleanerCollector(services, control.seen, self._guard, self._log_dirs[0])
        if self._cluster is not None:
            cleaner.of_cluster = self._cluster.conditions
        control.conditions = cleaner.conditions
        services.conditions.append(cleaner.conditions)
        services.overviews.append(cleaner.overview)
        self.metrics = metrics.registry(services, cleaner)
        if self._http is not None:
            rounds = RoundPages(
                self._log_dirs[0], self._env.fs, services.clock, services.disk, HttpLogin(services)
            )
            pages = app(
                self.metrics, lambda: self.is_serving, partial(self._health, cleaner), rounds,
                self._pages,
            )  # fmt: skip
            tls = None if certificates is None else certificates.following()
            http = HttpServer(pages, self._http, tls)
            self._running.push_async_callback(http.stop)
            await http.start()
        self.is_serving = True
        listeners = ", ".join(map(str, self._listeners))
        logger.info("node %d serves at %s", self._config.node_id, listeners)

    async def _open(self) -> Services:
        """Lock, read and open what is on disk."""
        disk = self._threads("lapse-disk", THREADS)
        self._running.push_async_callback(disk.close)
        partitions = Partitions(self._log_dirs, self._config, self._env)
        self._running.push_async_callback(asyncio.to_thread, partitions.close)
        await disk.run(partitions.lock)
        partitions.believe(await disk.run(self._guard.look))
        store = await self._open_store(disk, partitions)
        await disk.run(lambda: partitions.stamp(store.cluster_id()))
        if self._cluster is not None:
            await disk.run(self._cluster.store.keep_disks, partitions.directory_ids())
        counters, purgatory = Counters(), Purgatory()
        topics = Topics(store, partitions, disk, purgatory, self._config, self._members)
        topics.when_deleted.append(counters.topic_deleted)
        await self._load(topics, store, disk, partitions)
        replicas = await self._start_replicas(topics, partitions, disk, purgatory)
        self._require_directories(partitions)
        self._watch_directories(partitions, purgatory)
        # Again: when stopping, work under way ends before the store and the logs are closed.
        self._running.push_async_callback(disk.close)
        self._running.push_async_callback(topics.asking.close)
        moves = self._start_moves(topics, partitions, disk)
        pauses = TopicPauses(topics, partitions, disk, self._env.clock)
        self._running.push_async_callback(pauses.close)
        parts = Parts(partitions, disk, self._env.clock, purgatory, replicas)
        groups = GroupCoordinator(topics, parts, settings_of(self._config))
        self._running.push_async_callback(groups.close)
        groups.start()
        transactions = Transactions(
            topics, parts, MarkerWriter(parts, groups, self._peers),
            lambda count: topics.asking.run(store.allocate_producer_ids, count),
            transaction_settings(self._config, topics),
        )  # fmt: skip
        self._running.push_async_callback(transactions.close)
        transactions.start()
        windows, mutations = self._quota_windows()
        quotas = await self._load_quotas(store, topics, Quotas(windows, mutations))
        access = Access(store, topics.asking, self._config.security)
        await access.load()
        self._reread_where_unsure(topics, quotas, access, replicas)
        remote = await self._open_control(partitions)
        entrances = [
            await disk.run(entrance, self._config, listener, access) for listener in self._listeners
        ]
        return Services(
            self._config, self._env.clock, disk, topics, partitions, moves, purgatory, replicas,
            transactions, counters, groups, quotas, access,
            self._by_address, LogLines(),
            ConnectionRates(windows, quotas.connection_rate, lambda: topics.settings),
            FetchSessions(
                self._config.max_incremental_fetch_session_cache_slots,
                self._config.min_incremental_fetch_session_eviction_ms,
                partial(secrets.randbelow, SESSION_ID_END),
            ),
            RequestBytes(allowed_bytes(self._config.queued_max_request_bytes)),
            AnswerBytes(allowed_bytes(self._config.queued_max_response_bytes)),
            tuple(entrances), LoginAttempts(self._config.security.login_failures_per_minute),
            ADVERTISED, parts.arrivals, _erasures_of(self._config), remote,
        )  # fmt: skip

    async def _open_control(self, partitions: Partitions) -> RemoteServices:
        """What rounds need of this broker, for a service beside it (`start`) and for others."""
        self._control = Control(partitions, self._env, self._threads("lapse-control", 1))
        self._running.push_async_callback(self._control.close)
        remote = RemoteServices(self._control)
        self._running.push_async_callback(remote.close)
        await remote.start()
        return remote

    def _start_moves(self, topics: Topics, partitions: Partitions, disk: DiskThreads) -> Moves:
        """Between log directories; those that were cut short begin anew."""
        windows = Windows(
            self._config.alter_log_dirs_replication_quota_window_num,
            self._config.alter_log_dirs_replication_quota_window_size_seconds * 1000,
        )
        quota = CopyQuota(BETWEEN_DIRECTORIES, windows, lambda: topics.settings)
        moves = Moves(partitions, disk, self._env, quota)
        self._running.push_async_callback(moves.close)
        topics.when_deleted.append(moves.topic_deleted)
        moves.start(partitions.cut_short)
        return moves

    async def _load_quotas(
        self, store: MetadataStore, topics: Topics, counting: Quotas
    ) -> ClientQuotas:
        quotas = ClientQuotas(store, topics.asking, self._env.clock, counting)
        self._running.push_async_callback(quotas.close)
        await quotas.load()
        return quotas

    def _quota_windows(self) -> tuple[Windows, Windows]:
        """Of clients' rates, and of changes of topics."""
        config = self._config
        return (
            Windows(config.quota_window_num, config.quota_window_size_seconds * 1000),
            Windows(
                config.controller_quota_window_num,
                config.controller_quota_window_size_seconds * 1000,
            ),
        )

    async def _open_store(self, disk: DiskThreads, partitions: Partitions) -> MetadataStore:
        """Where the metadata is."""
        if not self._config.zookeeper_connect:
            path = self._log_dirs[0] / STORE
            protocol = protocol_of(self._config)
            store = await disk.run(SqliteStore, path, partitions.cluster_id, Levels.first(protocol))
            self._running.callback(store.close)
            await disk.run(_agree_alone, store, protocol)
            return store
        self._cluster = Cluster(
            self._config, self._env.clock, self._members, self.request_stop, partitions,
            self._connect,
        )  # fmt: skip
        self._running.push_async_callback(self._cluster.stop)
        return await self._cluster.open(partitions)

    @staticmethod
    async def _load(
        topics: Topics, store: MetadataStore, disk: DiskThreads, partitions: Partitions
    ) -> None:
        """Open the logs; a lone broker misses what was in a directory that it had and has not."""
        if not isinstance(store, SqliteStore):  # in a cluster other brokers may have it
            await topics.load()
            return
        had, has = await disk.run(store.disks), partitions.directory_ids()
        partitions.disks_missing = missing = had - has
        if len(missing) > len(partitions.offline_directories):  # of those that was said
            logger.warning(
                "log directories that this broker had are not there (directory.id %s): what is in "
                "none of the others is offline", ", ".join(sorted(missing)),
            )  # fmt: skip
        await topics.load()
        # A directory is known until nothing is missed that it may have had.
        kept = had | has if partitions.offline else has
        await disk.run(store.keep_disks, kept)

    async def _start_replicas(
        self, topics: Topics, partitions: Partitions, disk: DiskThreads, purgatory: Purgatory
    ) -> Replicas:
        """Lead and follow; a broker that is alone leads everything without."""
        store = None if self._cluster is None else self._cluster.store
        if store is not None:
            topics.asking = self._threads("lapse-asking", 1)
            self._running.push_async_callback(topics.asking.close)
        windows = Windows(
            self._config.replication_quota_window_num,
            self._config.replication_quota_window_size_seconds * 1000,
        )
        around = Surroundings(
            self._config, partitions, disk, topics.asking, self._env.clock, purgatory,
            self._members, self._peers,
            ReplicationQuotas.of(self._config.node_id, windows, lambda: topics.settings),
        )  # fmt: skip
        replicas = Replicas(around, store)
        if store is None:
            return replicas
        self._running.push_async_callback(replicas.close)
        await replicas.carry_out(topics.image)
        topics.when_changed, topics.set_states = replicas.apply, store.set_states
        self._when_offline = lambda: replicas.apply(topics.image)
        topics.ask_controller = partial(ask_for_topic, self._peers, self._members)
        replicas.start()
        return replicas

    def _reread_where_unsure(
        self, topics: Topics, quotas: ClientQuotas, access: Access, replicas: Replicas
    ) -> None:
        """What is stored is read again after a change of which nobody knows whether it was."""
        rereading = Rereading()
        self._running.push_async_callback(rereading.close)
        topics.unsure = partial(rereading.begin, "topics", topics.reread)
        quotas.unsure = partial(rereading.begin, "client quotas", quotas.reread)
        access.unsure = partial(rereading.begin, "users", access.reread)
        replicas.reread = topics.unsure
        if self._cluster is not None:
            self._cluster.rereads = {
                TOPICS_CHANGED: topics.reread,
                QUOTAS_CHANGED: quotas.reread,
                USERS_CHANGED: access.reread,
            }

    async def _watch_certificates(self, services: Services) -> Certificates | None:
        """Have all that change read again from now on; returns the HTTP port's."""
        of_http = None
        if self._http is not None:
            of_http = await services.disk.run(http_certificates, self._config.security)
        watched = [(one.listener.name, one.certificates) for one in services.entrances]
        self._certificates = CertificateWatch(
            [*watched, (HTTP, of_http)],
            services.disk, services.counters, self._config.housekeeping_interval_ms / 1000,
        )  # fmt: skip
        self._running.push_async_callback(self._certificates.stop)
        self._certificates.start()
        return of_http

    def _watch_directories(self, partitions: Partitions, purgatory: Purgatory) -> None:
        """When one goes offline, wake requests that wait for its logs; stop when none is left."""

        def went_offline(gone: Sequence[TopicPartition]) -> None:
            for partition in gone:
                purgatory.changed(partition)
            self._when_offline()
            if not partitions.directories:
                self.request_stop()

        loop = asyncio.get_running_loop()

        def noticed(gone: Sequence[TopicPartition]) -> None:
            loop.call_soon_threadsafe(went_offline, gone)

        partitions.when_offline = noticed

    def _require_directories(self, partitions: Partitions) -> None:
        if not partitions.directories:
            reasons = "; ".join(partitions.offline_directories.values())
            raise StorageError(f"log.dirs={self._config.log_dirs}: all of them failed: {reasons}")

    def _health(self, cleaner: CleanerCollector) -> Health:
        """What is out of order; in a thread, for it reads files."""
        found = cleaner.conditions()
        lines = [*map(str, found), *self._certificates.troubles.values()]
        lines += self._housekeeping.troubles()
        if self._guard.trouble and not self._guard.held:  # else it is among what was found
            lines.append(self._guard.trouble)
        return Health(any(one.is_fault for one in found), lines)

    async def stop(self) -> None:
        """Stop serving and close everything in order; in a cluster others lead before that."""
        if self._cluster is not None and self.is_serving:
            await self._cluster.leave(LEAVE_SECONDS_MAX)
        self.is_serving = False
        await self._running.aclose()


def _erasures_of(config: BrokerConfig) -> Erasures:
    folder = Path(config.erase_orders_dir) if config.erase_orders_dir else None
    return Erasures(folder, config.node_id)


def _agree_alone(store: MetadataStore, protocol: int) -> None:
    """What a cluster's controller does as brokers come, for one that is alone."""
    levels = store.levels()
    require_fit(levels, protocol)
    after = agreed(levels, [protocol])
    if after is not None:
        store.set_levels(after)
