package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"
	. "lapse.test/harness"
)

var groups = []Check{
	{"members_share_and_one_leaves_eager", func(ctx context.Context) {
		share(ctx, "eager", sarama.NewBalanceStrategyRange())
	}},
	{"members_share_and_one_leaves_cooperative", func(ctx context.Context) {
		share(ctx, "cooperative", sarama.NewBalanceStrategyCooperativeSticky())
	}},
	{"static_member_comes_back_to_its_part", static},
	{"committed_offsets_are_where_the_next_goes_on", goesOn},
	{"groups_are_listed_and_deleted", listed},
}

// member of a group: what it has and what it got. It commits what it was told to mark.
type member struct {
	sarama.ConsumerGroup
	mu       sync.Mutex
	held     map[int32]bool
	lost     int
	took     []string
	markUpTo int64
	session  sarama.ConsumerGroupSession
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session = session
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	m.mu.Lock()
	m.held[claim.Partition()] = true
	m.mu.Unlock()
	for message := range claim.Messages() {
		m.mu.Lock()
		m.took = append(m.took, string(message.Value))
		if message.Offset < m.markUpTo {
			session.MarkMessage(message, "up to here")
		}
		m.mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.held, claim.Partition())
	m.lost++
	return nil
}

func join(ctx context.Context, topic string, markUpTo int64, change ...func(*sarama.Config)) *member {
	settled := func(config *sarama.Config) {
		config.Consumer.Offsets.AutoCommit.Enable = false
		config.Consumer.Group.Session.Timeout = 6 * time.Second
		config.Consumer.Group.Heartbeat.Interval = 100 * time.Millisecond
		config.Consumer.Group.Rebalance.Retry.Backoff = 100 * time.Millisecond
	}
	config := with(append([]func(*sarama.Config){settled}, change...)...)
	m := &member{held: map[int32]bool{}, markUpTo: markUpTo}
	m.ConsumerGroup = Got(sarama.NewConsumerGroup([]string{bootstrap}, topic, config))
	context.AfterFunc(ctx, func() { m.Close() })
	go func() {
		for range m.Errors() { // a rebalance in the middle of a commit is one
		}
	}()
	go func() {
		for ctx.Err() == nil {
			err := m.Consume(ctx, []string{topic}, m)
			if errors.Is(err, sarama.ErrClosedConsumerGroup) {
				return
			}
		}
	}()
	return m
}

func (m *member) parts() []int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var parts []int32
	for part := range m.held {
		parts = append(parts, part)
	}
	slices.Sort(parts)
	return parts
}

func (m *member) read() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.took)
}

func strategy(of sarama.BalanceStrategy) func(*sarama.Config) {
	return func(config *sarama.Config) {
		config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{of}
	}
}

func share(ctx context.Context, name string, how sarama.BalanceStrategy) {
	topic := topicFor(ctx, "shared-"+name, 4, nil)
	one := join(ctx, topic, 0, strategy(how))
	Until("all for one", func() bool { return len(one.parts()) == 4 })
	two := join(ctx, topic, 0, strategy(how))
	Until("half each", func() bool { return len(one.parts()) == 2 && len(two.parts()) == 2 })
	all := slices.Concat(one.parts(), two.parts())
	slices.Sort(all)
	Equal(all, []int32{0, 1, 2, 3})
	if name == "cooperative" {
		Equal(one.lost, 2) // what it keeps was never taken from it
	}
	adm := admin(ctx)
	var described *sarama.GroupDescription
	Until("a stable group", func() bool {
		described = Got(adm.DescribeConsumerGroups([]string{topic}))[0]
		return described.State == "Stable"
	})
	Equal(described.Protocol, how.Name())
	Equal(len(described.Members), 2)
	Must(two.Close())
	Until("all for one again", func() bool { return len(one.parts()) == 4 })
	with := producer(ctx, func(config *sarama.Config) {
		config.Producer.Partitioner = sarama.NewRoundRobinPartitioner
	})
	send(with, topic, numbered("value", 40)...)
	Until("all values", func() bool { return len(one.read()) == 40 })
}

func instance(id string) func(*sarama.Config) {
	return func(config *sarama.Config) { config.Consumer.Group.InstanceId = id }
}

func static(ctx context.Context) {
	topic := topicFor(ctx, "static", 2, nil)
	one := join(ctx, topic, 0, instance("one"))
	two := join(ctx, topic, 0, instance("two"))
	Until("one each", func() bool { return len(one.parts()) == 1 && len(two.parts()) == 1 })
	part, lost := two.parts(), one.lost
	Must(two.Close()) // a static member does not leave
	again := join(ctx, topic, 0, instance("two"))
	Until("its part", func() bool { return len(again.parts()) == 1 })
	Equal(again.parts(), part)
	Equal(one.lost, lost)
}

func goesOn(ctx context.Context) {
	topic := topicFor(ctx, "committed", 1, nil)
	send(producer(ctx), topic, numbered("value", 10)...)
	one := join(ctx, topic, 6)
	Until("ten values", func() bool { return len(one.read()) == 10 })
	one.session.Commit()
	Must(one.Close())
	found := Got(admin(ctx).ListConsumerGroupOffsets(topic, map[string][]int32{topic: {0}}))
	block := found.GetBlock(topic, 0)
	Equal([]any{block.Offset, block.Metadata}, []any{int64(6), "up to here"})
	two := join(ctx, topic, 0)
	Until("four values", func() bool { return len(two.read()) == 4 })
	Equal(two.read(), numbered("value", 10)[6:])
}

func listed(ctx context.Context) {
	topic := topicFor(ctx, "listed", 2, nil)
	adm := admin(ctx)
	at := sarama.OffsetAndMetadata{Offset: 3, Metadata: "three", LeaderEpoch: -1}
	Got(adm.AlterConsumerGroupOffsets(topic, map[string]map[int32]sarama.OffsetAndMetadata{
		topic: {0: at, 1: at},
	}, nil))
	offset := func(part int32) int64 {
		return Got(adm.ListConsumerGroupOffsets(topic, map[string][]int32{topic: {0, 1}})).GetBlock(topic, part).Offset
	}
	Equal(offset(0), int64(3))
	_, there := Got(adm.ListConsumerGroups())[topic]
	Expect(there, "not listed")
	Must(adm.DeleteConsumerGroupOffset(topic, topic, 1))
	Equal([]int64{offset(0), offset(1)}, []int64{3, -1})
	Must(adm.DeleteConsumerGroup(topic))
	_, there = Got(adm.ListConsumerGroups())[topic]
	Expect(!there, "still listed")
}
