package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	. "lapse.test/harness"
)

var administration = []Check{
	{"topics_are_created_and_deleted", topics},
	{"partitions_are_added", grown},
	{"settings_are_described_and_altered", altered},
	{"records_are_deleted", trimmed},
	{"offsets_by_time", byTime},
	{"offsets_by_leader_epoch", byEpoch},
	{"acls_need_an_authorizer", acls},
	{"log_dirs_are_described", logDirs},
	{"transactions_are_described", transactions},
	{"quotas_are_set", quotas},
}

func expectError(err, want error) {
	Expect(errors.Is(err, want), "%v, not %v", err, want)
}

func topics(ctx context.Context) {
	adm := admin(ctx)
	topic := topicFor(ctx, "created", 3, settings{"cleanup.policy": "compact"})
	found := Got(adm.ListTopics(ctx, topic))[topic]
	Must(found.Err)
	Equal(len(found.Partitions), 3)
	Expect(found.ID != kadm.TopicID{}, "no topic id")
	_, err := adm.CreateTopic(ctx, 1, 1, nil, topic)
	expectError(err, kerr.TopicAlreadyExists)
	bad := "shred"
	_, err = adm.CreateTopic(ctx, 1, 1, map[string]*string{"cleanup.policy": &bad}, run+"-bad")
	expectError(err, kerr.InvalidConfig)
	_, err = adm.CreateTopic(ctx, 1, 3, nil, run+"-three")
	expectError(err, kerr.InvalidReplicationFactor)
	Must(Got(adm.ValidateCreateTopics(ctx, 1, 1, nil, run+"-dry")).Error())
	Expect(!Got(adm.ListTopics(ctx)).Has(run+"-dry"), "made by a validation")
	Got(adm.DeleteTopic(ctx, topic))
	Until("topic gone", func() bool { return !Got(adm.ListTopics(ctx)).Has(topic) })
	_, err = adm.DeleteTopic(ctx, topic)
	expectError(err, kerr.UnknownTopicOrPartition)
}

func grown(ctx context.Context) {
	adm := admin(ctx)
	topic := topicFor(ctx, "grown", 1, nil)
	Must(Got(adm.CreatePartitions(ctx, 3, topic)).Error())
	Until("four partitions", func() bool {
		return len(Got(adm.ListTopics(ctx, topic))[topic].Partitions) == 4
	})
	expectError(Got(adm.UpdatePartitions(ctx, 2, topic)).Error(), kerr.InvalidPartitions)
}

func altered(ctx context.Context) {
	adm := admin(ctx)
	topic := topicFor(ctx, "settings", 1, settings{"retention.ms": "1000000", "cleanup.policy": "delete"})
	value := func(name string) string {
		for _, config := range Got(adm.DescribeTopicConfigs(ctx, topic))[0].Configs {
			if config.Key == name {
				parts := strings.Split(config.MaybeValue(), ",") // lists are sets
				slices.Sort(parts)
				return strings.Join(parts, ",")
			}
		}
		return "missing"
	}
	alter := func(op kadm.IncrementalOp, name, text string) error {
		configs := []kadm.AlterConfig{{Op: op, Name: name, Value: &text}}
		return Got(adm.AlterTopicConfigs(ctx, configs, topic))[0].Err
	}
	becomes := func(name, want string) {
		Until(name+"="+want, func() bool { return value(name) == want })
	}
	becomes("retention.ms", "1000000")
	Must(alter(kadm.SetConfig, "segment.ms", "700000"))
	Must(alter(kadm.AppendConfig, "cleanup.policy", "compact"))
	becomes("segment.ms", "700000")
	becomes("cleanup.policy", "compact,delete")
	becomes("retention.ms", "1000000") // incremental: the rest stays
	Must(alter(kadm.SubtractConfig, "cleanup.policy", "delete"))
	Must(alter(kadm.DeleteConfig, "retention.ms", ""))
	becomes("cleanup.policy", "compact")
	becomes("retention.ms", "604800000")
	expectError(alter(kadm.SetConfig, "retention.ms", "soon"), kerr.InvalidConfig)
	for _, broker := range Got(adm.DescribeBrokerConfigs(ctx, Got(adm.ListBrokers(ctx)).NodeIDs()...)) {
		Must(broker.Err)
		Expect(len(broker.Configs) > 20, "%d settings", len(broker.Configs))
	}
}

func trimmed(ctx context.Context) {
	adm := admin(ctx)
	topic := topicFor(ctx, "trimmed", 1, nil)
	send(ctx, client(ctx), topic, numbered("value", 10)...)
	before := func(offset int64) kadm.DeleteRecordsResponse {
		var offsets kadm.Offsets
		offsets.Add(kadm.Offset{Topic: topic, At: offset})
		return Got(adm.DeleteRecords(ctx, offsets))[topic][0]
	}
	Equal(before(4).LowWatermark, int64(4))
	expectError(before(11).Err, kerr.OffsetOutOfRange)
	Equal(values(read(ctx, topic, 6)), numbered("value", 10)[4:])
	Equal(before(-1).LowWatermark, int64(10))
	offset, _ := Got(adm.ListStartOffsets(ctx, topic)).Lookup(topic, 0)
	Equal(offset.Offset, int64(10))
}

func byTime(ctx context.Context) {
	adm := admin(ctx)
	topic := topicFor(ctx, "by-time", 1, kept)
	cl := client(ctx)
	for n := range 10 {
		record := &kgo.Record{Topic: topic, Timestamp: time.UnixMilli(int64(1000 + 10*(n%9)))}
		Must(cl.ProduceSync(ctx, record).FirstErr())
	}
	at := func(offsets kadm.ListedOffsets, err error) int64 {
		offset, _ := Got(offsets, err).Lookup(topic, 0)
		Must(offset.Err)
		return offset.Offset
	}
	Equal(at(adm.ListOffsetsAfterMilli(ctx, 1035, topic)), int64(4))
	Equal(at(adm.ListMaxTimestampOffsets(ctx, topic)), int64(8))
	Equal(at(adm.ListStartOffsets(ctx, topic)), int64(0))
	Equal(at(adm.ListEndOffsets(ctx, topic)), int64(10))
	Equal(at(adm.ListCommittedOffsets(ctx, topic)), int64(10))
	Equal(at(adm.ListLocalLogStartOffsets(ctx, topic)), int64(0))
}

func byEpoch(ctx context.Context) {
	topic := topicFor(ctx, "by-epoch", 1, kept)
	send(ctx, client(ctx), topic, numbered("value", 3)...)
	ended := func(epoch int32) [2]int64 {
		var asked kadm.OffsetForLeaderEpochRequest
		asked.Add(topic, 0, epoch)
		found := Got(admin(ctx).OffsetForLeaderEpoch(ctx, asked))[topic][0]
		Must(found.Err)
		return [2]int64{int64(found.LeaderEpoch), found.EndOffset}
	}
	Equal(ended(0), [2]int64{0, 3})
	Equal(ended(1), [2]int64{-1, -1})
}

func acls(ctx context.Context) {
	acl := kadm.NewACLs().Topics("t").Allow("User:somebody").Operations(kadm.OpRead).
		ResourcePatternType(kadm.ACLPatternLiteral)
	created, err := admin(ctx).CreateACLs(ctx, acl.AllowHosts())
	Must(err)
	expectError(created[0].Err, kerr.SecurityDisabled)
}

func logDirs(ctx context.Context) {
	topic := topicFor(ctx, "log-dirs", 2, nil)
	send(ctx, client(ctx), topic, "value")
	found := Got(admin(ctx).DescribeAllLogDirs(ctx, kadm.TopicsSet{topic: {0: {}, 1: {}}}))
	Equal(len(found), 1)
	for _, dirs := range found {
		Must(dirs.Error())
		Expect(dirs.Size() > 0, "no bytes")
	}
}

func transactions(ctx context.Context) {
	topic := topicFor(ctx, "open", 1, nil)
	cl, adm := client(ctx, kgo.TransactionalID(topic)), admin(ctx)
	Must(cl.BeginTransaction())
	send(ctx, cl, topic, "open")
	Equal(Got(adm.ListTransactions(ctx, nil, nil))[topic].State, "Ongoing")
	described := Got(adm.DescribeTransactions(ctx, topic))[topic]
	Must(described.Err)
	_, inIt := described.Topics[topic][0]
	Expect(inIt, "partition is not described")
	var producers []kadm.DescribedProducer
	for _, found := range Got(adm.DescribeProducers(ctx, kadm.TopicsSet{topic: {0: {}}}))[topic].Partitions {
		for _, producer := range found.ActiveProducers {
			producers = append(producers, producer)
		}
	}
	Equal(len(producers), 1)
	Equal(producers[0].CurrentTxnStartOffset, int64(0))
	stable, _ := Got(adm.ListCommittedOffsets(ctx, topic)).Lookup(topic, 0)
	Equal(stable.Offset, int64(0))
	Must(cl.EndTransaction(ctx, kgo.TryAbort))
	Until("one record and one marker that are stable", func() bool { // markers come after the answer
		stable, _ = Got(adm.ListCommittedOffsets(ctx, topic)).Lookup(topic, 0)
		return stable.Offset == 2
	})
}

func quotas(ctx context.Context) {
	adm := admin(ctx)
	name := run
	entity := kadm.ClientQuotaEntity{{Type: "client-id", Name: &name}}
	set := Got(adm.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{{
		Entity: entity, Ops: []kadm.AlterClientQuotaOp{{Key: "producer_byte_rate", Value: 1e9}},
	}}))
	Must(set[0].Err)
	match := []kadm.DescribeClientQuotaComponent{{Type: "client-id", MatchName: &name}}
	Until("quota", func() bool {
		found := Got(adm.DescribeClientQuotas(ctx, true, match))
		return len(found) == 1 && found[0].Values[0].Value == 1e9
	})
}
