// What a program with sarama does to a broker, at the protocol level that sarama has by default; the
// checks whose name begins with newest are at the newest level it has.
//
//	sarama HOST:PORT
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/IBM/sarama"
	. "lapse.test/harness"
)

var (
	bootstrap = os.Args[1]
	run       = "sarama-" + rand.Text()[:6] // in the name of every topic
)

// with is sarama's default, changed.
func with(change ...func(*sarama.Config)) *sarama.Config {
	config := sarama.NewConfig()
	config.Net.DialTimeout = 2 * time.Second
	config.Metadata.Retry.Max = 1
	config.Metadata.AllowAutoTopicCreation = false
	config.Producer.Return.Successes = true
	config.Consumer.Return.Errors = true
	config.Consumer.MaxWaitTime = 200 * time.Millisecond
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	for _, one := range change {
		one(config)
	}
	return config
}

func admin(ctx context.Context, change ...func(*sarama.Config)) sarama.ClusterAdmin {
	adm := Got(sarama.NewClusterAdmin([]string{bootstrap}, with(change...)))
	context.AfterFunc(ctx, func() { adm.Close() })
	return adm
}

type settings map[string]string

// kept is for topics whose records have times of long ago.
var kept = settings{"retention.ms": "-1"}

// topicFor makes a topic of a check's own.
func topicFor(ctx context.Context, name string, partitions int32, given settings) string {
	topic := run + "-" + name
	adm := admin(ctx)
	Must(adm.CreateTopic(topic, detail(partitions, given), false))
	Until("the topic", func() bool { // real Kafka's brokers learn of it a little later
		found := Got(adm.DescribeTopics([]string{topic}))[0]
		return found.Err == sarama.ErrNoError && len(found.Partitions) == int(partitions)
	})
	return topic
}

func detail(partitions int32, given settings) *sarama.TopicDetail {
	entries := map[string]*string{}
	for key, value := range given {
		entries[key] = &value
	}
	return &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1, ConfigEntries: entries}
}

func producer(ctx context.Context, change ...func(*sarama.Config)) sarama.SyncProducer {
	made := Got(sarama.NewSyncProducer([]string{bootstrap}, with(change...)))
	context.AfterFunc(ctx, func() { made.Close() })
	return made
}

func numbered(prefix string, count int) []string {
	values := make([]string, count)
	for n := range values {
		values[n] = fmt.Sprintf("%s-%d", prefix, n)
	}
	return values
}

func send(with sarama.SyncProducer, topic string, values ...string) {
	var messages []*sarama.ProducerMessage
	for _, value := range values {
		messages = append(messages, &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)})
	}
	Must(with.SendMessages(messages))
}

// read gets the first count messages of partition 0.
func read(ctx context.Context, topic string, count int, change ...func(*sarama.Config)) []*sarama.ConsumerMessage {
	consumer := Got(sarama.NewConsumer([]string{bootstrap}, with(change...)))
	defer consumer.Close()
	part := Got(consumer.ConsumePartition(topic, 0, sarama.OffsetOldest))
	defer part.Close()
	var messages []*sarama.ConsumerMessage
	for len(messages) < count {
		select {
		case message := <-part.Messages():
			messages = append(messages, message)
		case err := <-part.Errors():
			Must(err)
		case <-ctx.Done():
			Expect(false, "%d of %d messages came", len(messages), count)
		}
	}
	return messages
}

func values(messages []*sarama.ConsumerMessage) []string {
	var found []string
	for _, message := range messages {
		found = append(found, string(message.Value))
	}
	return found
}

func newest(config *sarama.Config)    { config.Version = sarama.MaxVersion }
func committed(config *sarama.Config) { config.Consumer.IsolationLevel = sarama.ReadCommitted }

func main() {
	report := &Report{}
	report.Run(first, slices.Concat(groups, writing, administration))
	os.Exit(report.Close())
}
