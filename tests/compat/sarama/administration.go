package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"
	. "lapse.test/harness"
)

var administration = []Check{
	{"topics_are_created_and_deleted", topics},
	{"partitions_are_added", grown},
	{"settings_are_described_and_altered", altered},
	{"records_are_deleted", trimmed},
	{"offsets_by_time", byTime},
	{"acls_need_an_authorizer", acls},
	{"log_dirs_are_described", logDirs},
	{"quotas_are_set", quotas},
}

func topics(ctx context.Context) {
	adm := admin(ctx)
	topic := topicFor(ctx, "created", 3, settings{"cleanup.policy": "compact"})
	found := Got(adm.DescribeTopics([]string{topic}))[0]
	Expect(found.Err == sarama.ErrNoError, "%v", found.Err)
	Equal(len(found.Partitions), 3)
	Equal(*Got(adm.ListTopics())[topic].ConfigEntries["cleanup.policy"], "compact")
	expectError(adm.CreateTopic(topic, detail(1, nil), false), sarama.ErrTopicAlreadyExists)
	bad := settings{"cleanup.policy": "shred"}
	expectError(adm.CreateTopic(run+"-bad", detail(1, bad), false), sarama.ErrInvalidConfig)
	three := detail(1, nil)
	three.ReplicationFactor = 3
	expectError(adm.CreateTopic(run+"-three", three, false), sarama.ErrInvalidReplicationFactor)
	Must(adm.CreateTopic(run+"-dry", detail(1, nil), true))
	_, made := Got(adm.ListTopics())[run+"-dry"]
	Expect(!made, "made by a validation")
	Must(adm.DeleteTopic(topic))
	Until("topic gone", func() bool {
		_, there := Got(adm.ListTopics())[topic]
		return !there
	})
	expectError(adm.DeleteTopic(topic), sarama.ErrUnknownTopicOrPartition)
}

func grown(ctx context.Context) {
	adm := admin(ctx)
	topic := topicFor(ctx, "grown", 1, nil)
	Must(adm.CreatePartitions(topic, 4, nil, false))
	Until("four partitions", func() bool {
		return len(Got(adm.DescribeTopics([]string{topic}))[0].Partitions) == 4
	})
	expectError(adm.CreatePartitions(topic, 2, nil, false), sarama.ErrInvalidPartitions)
}

func altered(ctx context.Context) {
	adm := admin(ctx)
	topic := topicFor(ctx, "settings", 1, settings{"retention.ms": "1000000", "cleanup.policy": "delete"})
	value := func(name string) string {
		for _, entry := range Got(adm.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic})) {
			if entry.Name == name {
				parts := strings.Split(entry.Value, ",") // lists are sets
				slices.Sort(parts)
				return strings.Join(parts, ",")
			}
		}
		return "missing"
	}
	alter := func(op sarama.IncrementalAlterConfigsOperation, name, text string) error {
		entries := map[string]sarama.IncrementalAlterConfigsEntry{name: {Operation: op, Value: &text}}
		return adm.IncrementalAlterConfig(sarama.TopicResource, topic, entries, false)
	}
	becomes := func(name, want string) {
		Until(name+"="+want, func() bool { return value(name) == want })
	}
	becomes("retention.ms", "1000000")
	Must(alter(sarama.IncrementalAlterConfigsOperationSet, "segment.ms", "700000"))
	Must(alter(sarama.IncrementalAlterConfigsOperationAppend, "cleanup.policy", "compact"))
	becomes("segment.ms", "700000")
	becomes("cleanup.policy", "compact,delete")
	becomes("retention.ms", "1000000") // incremental: the rest stays
	Must(alter(sarama.IncrementalAlterConfigsOperationDelete, "retention.ms", ""))
	becomes("retention.ms", "604800000")
	expectError(alter(sarama.IncrementalAlterConfigsOperationSet, "retention.ms", "soon"), sarama.ErrInvalidConfig)
	one := "86400000"
	Must(adm.AlterConfig(sarama.TopicResource, topic, map[string]*string{"retention.ms": &one}, false))
	becomes("retention.ms", one)
	becomes("segment.ms", "604800000") // the old call replaces all
}

func trimmed(ctx context.Context) {
	adm := admin(ctx)
	topic := topicFor(ctx, "trimmed", 1, nil)
	send(producer(ctx), topic, numbered("value", 10)...)
	Must(adm.DeleteRecords(topic, map[int32]int64{0: 4}))
	messages := read(ctx, topic, 6)
	Equal(messages[0].Offset, int64(4))
	err := adm.DeleteRecords(topic, map[int32]int64{0: 11})
	Expect(err != nil && strings.Contains(err.Error(), sarama.ErrOffsetOutOfRange.Error()), "%v", err)
	// The answer itself has the low watermark, which the admin client keeps to itself.
	leader := Got(adm.Controller())
	answer := Got(leader.DeleteRecords(&sarama.DeleteRecordsRequest{
		Topics:  map[string]*sarama.DeleteRecordsRequestTopic{topic: {PartitionOffsets: map[int32]int64{0: -1}}},
		Timeout: 10 * time.Second,
	}))
	Equal(answer.Topics[topic].Partitions[0].LowWatermark, int64(10))
}

func byTime(ctx context.Context) {
	topic := topicFor(ctx, "by-time", 1, kept)
	with := producer(ctx)
	for n, value := range numbered("value", 10) {
		message := &sarama.ProducerMessage{Topic: topic, Value: text(value), Timestamp: time.UnixMilli(int64(1000 + 10*n))}
		_, _, err := with.SendMessage(message)
		Must(err)
	}
	for _, level := range []func(*sarama.Config){func(*sarama.Config) {}, newest} {
		adm := admin(ctx, level)
		at := func(time int64) int64 {
			found := Got(adm.ListOffsets(map[string]map[int32]int64{topic: {0: time}}, nil))
			Equal(found[topic][0].Err, sarama.ErrNoError)
			return found[topic][0].Offset
		}
		Equal(at(1035), int64(4))
		Equal(at(sarama.OffsetOldest), int64(0))
		Equal(at(sarama.OffsetNewest), int64(10))
		Equal(at(5000), int64(-1))
	}
}

func acls(ctx context.Context) {
	resource := sarama.Resource{
		ResourceType: sarama.AclResourceTopic, ResourceName: run,
		ResourcePatternType: sarama.AclPatternLiteral,
	}
	acl := sarama.Acl{
		Principal: "User:somebody", Host: "*",
		Operation: sarama.AclOperationRead, PermissionType: sarama.AclPermissionAllow,
	}
	expectError(admin(ctx).CreateACL(resource, acl), sarama.ErrSecurityDisabled)
}

func logDirs(ctx context.Context) {
	topic := topicFor(ctx, "log-dirs", 1, nil)
	send(producer(ctx), topic, "value")
	adm := admin(ctx)
	_, controller, err := adm.DescribeCluster()
	Must(err)
	var size int64
	for _, dir := range Got(adm.DescribeLogDirs([]int32{controller}))[controller] {
		for _, of := range dir.Topics {
			if of.Topic == topic {
				size += of.Partitions[0].Size
			}
		}
	}
	Expect(size > 0, "no bytes")
}

func quotas(ctx context.Context) {
	adm := admin(ctx)
	entity := []sarama.QuotaEntityComponent{{EntityType: sarama.QuotaEntityClientID, MatchType: sarama.QuotaMatchExact, Name: run}}
	Must(adm.AlterClientQuotas(entity, sarama.ClientQuotasOp{Key: "producer_byte_rate", Value: 1e9}, false))
	match := []sarama.QuotaFilterComponent{{EntityType: sarama.QuotaEntityClientID, MatchType: sarama.QuotaMatchExact, Match: run}}
	Until("quota", func() bool {
		found := Got(adm.DescribeClientQuotas(match, true))
		return len(found) == 1 && found[0].Values["producer_byte_rate"] == 1e9
	})
}
