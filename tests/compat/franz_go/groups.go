package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	. "lapse.test/harness"
)

var groups = []Check{
	{"members_share_and_one_leaves_eager", func(ctx context.Context) {
		share(ctx, "eager", kgo.RangeBalancer())
	}},
	{"members_share_and_one_leaves_cooperative", func(ctx context.Context) {
		share(ctx, "cooperative", kgo.CooperativeStickyBalancer())
	}},
	{"static_member_comes_back_to_its_part", static},
	{"committed_offsets_are_where_the_next_goes_on", committed},
	{"groups_are_listed_and_deleted", listed},
}

// member of a group, with what it has and what it got, by the client's callbacks.
type member struct {
	*kgo.Client
	mu      sync.Mutex
	held    map[int32]bool
	revoked int
	took    []string
}

func join(ctx context.Context, topic string, opts ...kgo.Opt) *member {
	m := &member{held: map[int32]bool{}}
	assigned := func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, part := range parts[topic] {
			m.held[part] = true
		}
	}
	gone := func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, part := range parts[topic] {
			delete(m.held, part)
			m.revoked++
		}
	}
	m.Client = client(ctx, append([]kgo.Opt{
		kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(100 * time.Millisecond),
		kgo.OnPartitionsAssigned(assigned), kgo.OnPartitionsRevoked(gone), kgo.OnPartitionsLost(gone),
	}, opts...)...)
	go func() {
		for ctx.Err() == nil {
			fetches := m.PollFetches(ctx)
			if fetches.IsClientClosed() {
				return
			}
			m.mu.Lock()
			m.took = append(m.took, values(fetches.Records())...)
			m.mu.Unlock()
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

func share(ctx context.Context, name string, balancer kgo.GroupBalancer) {
	topic := topicFor(ctx, "shared-"+name, 4, nil)
	one := join(ctx, topic, kgo.Balancers(balancer))
	Until("all for one", func() bool { return len(one.parts()) == 4 })
	two := join(ctx, topic, kgo.Balancers(balancer))
	Until("half each", func() bool { return len(one.parts()) == 2 && len(two.parts()) == 2 })
	all := slices.Concat(one.parts(), two.parts())
	slices.Sort(all)
	Equal(all, []int32{0, 1, 2, 3})
	if balancer.IsCooperative() {
		Equal(one.revoked, 2) // what it keeps was never taken from it
	}
	described := Got(admin(ctx).DescribeGroups(ctx, topic))[topic]
	Until("stable", func() bool {
		described = Got(admin(ctx).DescribeGroups(ctx, topic))[topic]
		return described.State == "Stable"
	})
	Equal(described.Protocol, balancer.ProtocolName())
	Equal(len(described.Members), 2)
	two.Close()
	Until("all for one again", func() bool { return len(one.parts()) == 4 })
	send(ctx, client(ctx, kgo.RecordPartitioner(kgo.RoundRobinPartitioner())), topic, numbered("v", 40)...)
	Until("all values", func() bool { return len(one.read()) == 40 })
}

func static(ctx context.Context) {
	topic := topicFor(ctx, "static", 2, nil)
	one := join(ctx, topic, kgo.InstanceID("one"))
	two := join(ctx, topic, kgo.InstanceID("two"))
	Until("one each", func() bool { return len(one.parts()) == 1 && len(two.parts()) == 1 })
	part, revoked := two.parts(), one.revoked
	two.Close() // a static member does not leave
	again := join(ctx, topic, kgo.InstanceID("two"))
	Until("its part", func() bool { return len(again.parts()) == 1 })
	Equal(again.parts(), part)
	Equal(one.revoked, revoked)
}

func committed(ctx context.Context) {
	topic := topicFor(ctx, "committed", 1, nil)
	send(ctx, client(ctx), topic, numbered("value", 10)...)
	one := join(ctx, topic)
	Until("ten values", func() bool { return len(one.read()) == 10 })
	Must(one.CommitRecords(ctx, &kgo.Record{Topic: topic, Partition: 0, Offset: 5, LeaderEpoch: -1}))
	one.Close()
	offset, _ := Got(admin(ctx).FetchOffsets(ctx, topic)).Lookup(topic, 0)
	Equal(offset.At, int64(6))
	two := join(ctx, topic)
	Until("four values", func() bool { return len(two.read()) == 4 })
	Equal(two.read(), numbered("value", 10)[6:])
}

func listed(ctx context.Context) {
	topic := topicFor(ctx, "listed", 2, nil)
	adm := admin(ctx)
	var offsets kadm.Offsets
	for part := range int32(2) {
		offsets.Add(kadm.Offset{Topic: topic, Partition: part, At: 3, LeaderEpoch: -1, Metadata: "three"})
	}
	Must(adm.CommitAllOffsets(ctx, topic, offsets))
	offset, _ := Got(adm.FetchManyOffsets(ctx, topic)[topic].Fetched, nil).Lookup(topic, 0)
	Equal([]any{offset.At, offset.Metadata}, []any{int64(3), "three"})
	Equal(Got(adm.ListGroups(ctx))[topic].State, "Empty")
	Equal(Got(adm.ListGroups(ctx, "Stable"))[topic].Group, "")
	deleted := Got(adm.DeleteOffsets(ctx, topic, kadm.TopicsSet{topic: {1: {}}}))
	Must(deleted[topic][1])
	_, there := Got(adm.FetchOffsets(ctx, topic)).Lookup(topic, 1)
	Expect(!there, "its offset was deleted")
	Got(adm.DeleteGroup(ctx, topic))
	Expect(Got(adm.ListGroups(ctx))[topic].Group == "", "still listed")
}
