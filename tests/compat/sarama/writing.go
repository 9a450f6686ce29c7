package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"
	. "lapse.test/harness"
)

var first = Check{"describe_cluster", func(ctx context.Context) {
	brokers, controller, err := admin(ctx).DescribeCluster()
	Must(err)
	Equal(len(brokers), 1)
	Equal(brokers[0].ID(), controller)
	Equal(brokers[0].Addr(), bootstrap)
}}

var writing = slices.Concat(roundTrips(), []Check{
	{"idempotent", idempotent},
	{"transaction_commit_and_abort", commitAndAbort},
	{"transaction_sends_offsets", sendsOffsets},
	{"transactional_id_fences", fences},
	{"large_message_is_refused", large},
	{"unknown_topic_is_refused", unknown},
	{"keyless_records_are_refused", keyless},
})

// roundTrips has checks for each codec: everything comes back as it was sent.
func roundTrips() []Check {
	var checks []Check
	for codec := sarama.CompressionNone; codec <= sarama.CompressionZSTD; codec++ {
		checks = append(checks,
			Check{"produce_and_consume_" + codec.String(), func(ctx context.Context) {
				roundTrip(ctx, "codec-"+codec.String(), codec, func(*sarama.Config) {})
			}},
			Check{"newest_produce_and_consume_" + codec.String(), func(ctx context.Context) {
				roundTrip(ctx, "newest-codec-"+codec.String(), codec, newest)
			}})
	}
	return checks
}

// A minute ago: of long ago they would be expired.
var timeMs = time.Now().UnixMilli() - 60_000

func roundTrip(ctx context.Context, name string, codec sarama.CompressionCodec, level func(*sarama.Config)) {
	topic := topicFor(ctx, name, 1, kept)
	headers := []sarama.RecordHeader{
		{Key: []byte("h"), Value: []byte("1")}, {Key: []byte("h"), Value: []byte{}},
	}
	pairs := [][2]sarama.Encoder{
		{text("k"), text("v")}, {nil, text("only a value")}, {text("only a key"), nil}, {nil, nil},
		{text(""), text("")}, {text("ü"), text(strings.Repeat("x", 5000))},
	}
	var messages []*sarama.ProducerMessage
	for n, pair := range pairs {
		messages = append(messages, &sarama.ProducerMessage{
			Topic: topic, Key: pair[0], Value: pair[1], Headers: headers,
			Timestamp: time.UnixMilli(timeMs + int64(n)),
		})
	}
	Must(producer(ctx, level, func(config *sarama.Config) {
		config.Producer.Compression = codec
		config.Producer.Flush.Messages = len(pairs)
		config.Producer.Flush.Frequency = 100 * time.Millisecond
	}).SendMessages(messages))
	for n, message := range read(ctx, topic, len(pairs), level) {
		Equal(message.Offset, int64(n))
		Equal(message.Timestamp.UnixMilli(), timeMs+int64(n))
		Equal([2][]byte{message.Key, message.Value}, [2][]byte{bytes(pairs[n][0]), bytes(pairs[n][1])})
		for h, header := range message.Headers {
			Equal(*header, headers[h])
		}
		Equal(len(message.Headers), len(headers))
	}
}

func text(of string) sarama.Encoder { return sarama.StringEncoder(of) }

func bytes(of sarama.Encoder) []byte {
	if of == nil {
		return nil
	}
	return Got(of.Encode())
}

func exactly(config *sarama.Config) {
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Net.MaxOpenRequests = 1
}

// transactional has an id of this name.
func transactional(id string) func(*sarama.Config) {
	return func(config *sarama.Config) {
		exactly(config)
		config.Producer.Transaction.ID = id
	}
}

func idempotent(ctx context.Context) {
	topic := topicFor(ctx, "idempotent", 1, nil)
	with := producer(ctx, exactly)
	for range 5 {
		send(with, topic, numbered("value", 20)...)
	}
	Equal(values(read(ctx, topic, 100))[80:], numbered("value", 20))
}

func commitAndAbort(ctx context.Context) {
	topic := topicFor(ctx, "transaction", 1, nil)
	with := producer(ctx, transactional(topic))
	for _, step := range []struct {
		prefix string
		end    func() error
	}{{"gone", with.AbortTxn}, {"kept", with.CommitTxn}, {"gone", with.AbortTxn}, {"last", with.CommitTxn}} {
		Must(with.BeginTxn())
		send(with, topic, numbered(step.prefix, 10)...)
		Must(step.end())
	}
	Equal(values(read(ctx, topic, 20, committed)), append(numbered("kept", 10), numbered("last", 10)...))
	Equal(values(read(ctx, topic, 40))[:10], numbered("gone", 10))
}

func sendsOffsets(ctx context.Context) {
	topic := topicFor(ctx, "offsets-in-transaction", 1, nil)
	with := producer(ctx, transactional(topic))
	for _, step := range []struct {
		offset int64
		end    func() error
	}{{3, with.CommitTxn}, {7, with.AbortTxn}} {
		Must(with.BeginTxn())
		send(with, topic, "value")
		Must(with.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{
			topic: {{Partition: 0, Offset: step.offset}},
		}, topic))
		Must(step.end())
	}
	adm := admin(ctx)
	Until("the committed offset", func() bool {
		found := Got(adm.ListConsumerGroupOffsets(topic, map[string][]int32{topic: {0}}))
		return found.GetBlock(topic, 0).Offset == 3
	})
}

func fences(ctx context.Context) {
	topic := topicFor(ctx, "fenced", 1, nil)
	older := producer(ctx, transactional(topic))
	Must(older.BeginTxn())
	send(older, topic, "gone")
	newer := producer(ctx, transactional(topic))
	Must(newer.BeginTxn())
	send(newer, topic, "kept")
	Must(newer.CommitTxn())
	err := older.CommitTxn()
	Expect(err != nil, "the older one was not fenced")
	Equal(values(read(ctx, topic, 1, committed)), []string{"kept"})
}

func sendOne(with sarama.SyncProducer, topic string, key sarama.Encoder, value string) error {
	message := &sarama.ProducerMessage{Topic: topic, Key: key, Value: text(value)}
	_, _, err := with.SendMessage(message)
	return err
}

func expectError(err, want error) {
	Expect(errors.Is(err, want), "%v, not %v", err, want)
}

func large(ctx context.Context) {
	topic := topicFor(ctx, "large", 1, settings{"max.message.bytes": "1000"})
	with := producer(ctx)
	expectError(sendOne(with, topic, nil, strings.Repeat("x", 5000)), sarama.ErrMessageSizeTooLarge)
	Must(sendOne(with, topic, nil, "small"))
}

func unknown(ctx context.Context) {
	err := sendOne(producer(ctx), run+"-missing", nil, "value")
	expectError(err, sarama.ErrUnknownTopicOrPartition)
}

func keyless(ctx context.Context) {
	topic := topicFor(ctx, "compacted", 1, settings{"cleanup.policy": "compact"})
	with := producer(ctx)
	expectError(sendOne(with, topic, nil, "no key"), sarama.KError(87)) // INVALID_RECORD
	Must(sendOne(with, topic, text("key"), "value"))
}
