// What a program with franz-go does to a broker, at the versions that the two agree on.
//
//	franz_go HOST:PORT [KGO_TEST]
//
// KGO_TEST is the compiled tests of the package kgo; those of published.go are run too.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	. "lapse.test/harness"
)

var (
	bootstrap = os.Args[1]
	run       = "franz-go-" + rand.Text()[:6] // in the name of every topic
)

// client is one of a check's own, closed with its context.
func client(ctx context.Context, opts ...kgo.Opt) *kgo.Client {
	cl := Got(kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(bootstrap),
		kgo.DialTimeout(2 * time.Second),
		kgo.RetryTimeout(5 * time.Second),
		kgo.UnknownTopicRetries(1),
		kgo.FetchMaxWait(200 * time.Millisecond),
	}, opts...)...))
	context.AfterFunc(ctx, cl.CloseAllowingRebalance)
	return cl
}

func admin(ctx context.Context) *kadm.Client {
	return kadm.NewClient(client(ctx))
}

type settings map[string]string

// kept is for topics whose records have times of long ago.
var kept = settings{"retention.ms": "-1"}

// topicFor makes a topic of a check's own.
func topicFor(ctx context.Context, name string, partitions int32, given settings) string {
	configs := map[string]*string{}
	for key, value := range given {
		configs[key] = &value
	}
	topic := run + "-" + name
	adm := admin(ctx)
	Got(adm.CreateTopic(ctx, partitions, 1, configs, topic))
	Until("the topic", func() bool { // real Kafka's brokers learn of it a little later
		found := Got(adm.ListTopics(ctx, topic))[topic]
		return found.Err == nil && len(found.Partitions) == int(partitions)
	})
	return topic
}

func numbered(prefix string, count int) []string {
	values := make([]string, count)
	for n := range values {
		values[n] = fmt.Sprintf("%s-%d", prefix, n)
	}
	return values
}

// send produces values and waits for all of them.
func send(ctx context.Context, cl *kgo.Client, topic string, values ...string) {
	var records []*kgo.Record
	for _, value := range values {
		records = append(records, &kgo.Record{Topic: topic, Value: []byte(value)})
	}
	Must(cl.ProduceSync(ctx, records...).FirstErr())
}

// read gets the first count records of a topic; proof that there are no more is the end offset.
func read(ctx context.Context, topic string, count int, opts ...kgo.Opt) []*kgo.Record {
	cl := client(ctx, append([]kgo.Opt{
		kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}, opts...)...)
	defer cl.Close()
	var records []*kgo.Record
	for len(records) < count {
		fetches := cl.PollFetches(ctx)
		Must(fetches.Err())
		records = append(records, fetches.Records()...)
	}
	Equal(len(records), count)
	return records
}

func values(records []*kgo.Record) []string {
	var found []string
	for _, record := range records {
		found = append(found, string(record.Value))
	}
	return found
}

func main() {
	report := &Report{}
	checks := slices.Concat(groups, writing, administration)
	if !report.Run(first, checks) {
		for _, name := range published {
			report.Add(name, first.Name+" failed")
		}
	} else if len(os.Args) > 2 {
		runPublished(report, os.Args[2])
	}
	os.Exit(report.Close())
}
