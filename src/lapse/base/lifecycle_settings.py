"""Settings of the lifecycle service and of what is shown of erasures: their rows in the table."""

from __future__ import annotations

from lapse.base.setting import BOOLEAN, TEXT, Setting, whole

LIFECYCLE_SETTINGS: tuple[Setting, ...] = (
    Setting("lapse.lifecycle.master", TEXT, "local[*]", "Spark master of the lifecycle service."),
    Setting("lapse.lifecycle.memory.bytes", whole(16 << 20), str(2 << 30),
            "What the service may use: itself, Java, and the tasks of all rounds that run at once, "
            "which share what the others leave. On one machine at most three quarters of its "
            "memory; with a master of other machines of the tasks alone. A log that needs more "
            "than a task has is split."),
    Setting("lapse.lifecycle.cores.max", whole(0), "0",
            "How many tasks of rounds run at once; 0: as many as the master has."),
    Setting("lapse.lifecycle.idle.ms", whole(-1), "600000",
            "How long nothing must be due until the service ends Spark, with its Java and workers. "
            "What is due then starts it again, which takes some seconds. -1: Spark starts with the "
            "service, and stays."),
    Setting("lapse.lifecycle.nice", whole(0, 19), "15",
            "By how much the service, with Java and all tasks on its machine, yields to others, "
            "the broker above all: nice(1), and from 1 on Linux's SCHED_BATCH, so that others "
            "that wake up need not wait for them. Where nothing else wants the processor it costs "
            "nothing. Of one that is wanted all the time each thread of a round keeps some 3 % at "
            "15 and 10 % at 10; four run at once on two cores. Lower it where deadlines are "
            "missed."),
    Setting("lapse.lifecycle.remote.enable", BOOLEAN, "false",
            "Whether a lifecycle service on another machine may make this broker's rounds: `lapse "
            "lifecycle --bootstrap-server`, with the log directories on storage that both see. It "
            "needs CLUSTER_ACTION on the cluster, as brokers do; without an authorizer whoever "
            "reaches a listener has that right, and with it may replace segments."),
    Setting("lapse.erase.orders.dir", TEXT, "",
            "The folder that the folders of `lapse erase --order` are in: the dashboard shows "
            "these orders, with deadlines and proofs, metrics how many are open or late. Empty: "
            "none are shown."),
)  # fmt: skip
