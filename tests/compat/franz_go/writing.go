package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	. "lapse.test/harness"
)

var first = Check{"describe_cluster", func(ctx context.Context) {
	found := Got(admin(ctx).BrokerMetadata(ctx))
	Equal(len(found.Cluster), 22)
	Equal(found.Brokers.NodeIDs(), []int32{found.Controller})
	Equal(fmt.Sprintf("%s:%d", found.Brokers[0].Host, found.Brokers[0].Port), bootstrap)
}}

var codecs = []struct {
	name  string
	codec kgo.CompressionCodec
}{
	{"none", kgo.NoCompression()},
	{"gzip", kgo.GzipCompression()},
	{"snappy", kgo.SnappyCompression()},
	{"lz4", kgo.Lz4Compression()},
	{"zstd", kgo.ZstdCompression()},
}

var writing = slices.Concat(roundTrips(), []Check{
	{"idempotent", idempotent},
	{"without_idempotence", withoutIdempotence},
	{"transaction_commit_and_abort", commitAndAbort},
	{"transaction_consumes_and_produces", consumesAndProduces},
	{"transactional_id_fences", fences},
	{"large_message_is_refused", large},
	{"unknown_topic_is_refused", unknown},
	{"keyless_records_are_refused", keyless},
	{"reads_from_a_time", fromTime},
})

// roundTrips has a check for each codec: everything comes back as it was sent.
func roundTrips() []Check {
	var checks []Check
	for n, codec := range codecs {
		checks = append(checks, Check{"produce_and_consume_" + codec.name, func(ctx context.Context) {
			roundTrip(ctx, codec.name, n, codec.codec)
		}})
	}
	return checks
}

// A minute ago: of long ago they would be expired.
var timeMs = time.Now().UnixMilli() - 60_000

func roundTrip(ctx context.Context, name string, number int, codec kgo.CompressionCodec) {
	topic := topicFor(ctx, "codec-"+name, 1, kept)
	headers := []kgo.RecordHeader{{Key: "h", Value: []byte("1")}, {Key: "none"}, {Key: "h", Value: []byte{}}}
	pairs := [][2][]byte{
		{[]byte("k"), []byte("v")}, {nil, []byte("only a value")}, {[]byte("only a key"), nil}, {nil, nil},
		{{}, {}}, {[]byte("ü"), []byte(strings.Repeat("x", 5000))},
	}
	var records []*kgo.Record
	for n, pair := range pairs {
		records = append(records, &kgo.Record{
			Topic: topic, Key: pair[0], Value: pair[1], Headers: headers,
			Timestamp: time.UnixMilli(timeMs + int64(n)),
		})
	}
	cl := client(ctx, kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(50*time.Millisecond))
	Must(cl.ProduceSync(ctx, records...).FirstErr())
	for n, record := range read(ctx, topic, len(pairs)) {
		Equal(record.Offset, int64(n))
		Equal([2][]byte{record.Key, record.Value}, pairs[n])
		Equal(record.Headers, headers)
		Equal(record.Timestamp.UnixMilli(), timeMs+int64(n))
		Equal(int(record.Attrs.CompressionType()), number)
	}
}

func idempotent(ctx context.Context) {
	topic := topicFor(ctx, "idempotent", 1, nil)
	cl := client(ctx, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for range 5 {
		send(ctx, cl, topic, numbered("value", 20)...)
	}
	records := read(ctx, topic, 100)
	Expect(records[0].ProducerID >= 0, "no producer id")
	Equal(values(records[80:]), numbered("value", 20))
}

func withoutIdempotence(ctx context.Context) {
	topic := topicFor(ctx, "plain", 1, nil)
	send(ctx, client(ctx, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck())), topic, "one")
	send(ctx, client(ctx, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.NoAck())), topic, "none")
	records := read(ctx, topic, 2)
	Equal(values(records), []string{"one", "none"})
	Equal(records[0].ProducerID, int64(-1))
}

func commitAndAbort(ctx context.Context) {
	topic := topicFor(ctx, "transaction", 1, nil)
	cl := client(ctx, kgo.TransactionalID(topic))
	for _, end := range []struct {
		prefix string
		commit kgo.TransactionEndTry
	}{{"gone", kgo.TryAbort}, {"kept", kgo.TryCommit}, {"gone", kgo.TryAbort}, {"last", kgo.TryCommit}} {
		Must(cl.BeginTransaction())
		send(ctx, cl, topic, numbered(end.prefix, 10)...)
		Must(cl.EndTransaction(ctx, end.commit))
	}
	committed := kgo.FetchIsolationLevel(kgo.ReadCommitted())
	Equal(values(read(ctx, topic, 20, committed)), append(numbered("kept", 10), numbered("last", 10)...))
	Equal(values(read(ctx, topic, 40))[:10], numbered("gone", 10))
}

func consumesAndProduces(ctx context.Context) {
	from := topicFor(ctx, "transform-from", 1, nil)
	to := topicFor(ctx, "transform-to", 1, nil)
	send(ctx, client(ctx), from, numbered("value", 10)...)
	session := Got(kgo.NewGroupTransactSession(
		kgo.SeedBrokers(bootstrap), kgo.TransactionalID(from), kgo.ConsumerGroup(from),
		kgo.ConsumeTopics(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(200*time.Millisecond),
	))
	defer session.Close()
	for _, commit := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		for moved := 0; moved < 10; { // the abort puts the consumer back to the start
			fetches := session.PollFetches(ctx)
			Must(fetches.Err())
			Must(session.Begin())
			fetches.EachRecord(func(record *kgo.Record) {
				session.Produce(ctx, &kgo.Record{Topic: to, Value: record.Value}, nil)
			})
			ended := Got(session.End(ctx, commit))
			Equal(ended, bool(commit))
			moved += fetches.NumRecords()
		}
	}
	Equal(values(read(ctx, to, 10, kgo.FetchIsolationLevel(kgo.ReadCommitted()))), numbered("value", 10))
	offset, _ := Got(admin(ctx).FetchOffsets(ctx, from)).Lookup(from, 0)
	Equal(offset.At, int64(10))
}

func fences(ctx context.Context) {
	topic := topicFor(ctx, "fenced", 1, nil)
	older, newer := client(ctx, kgo.TransactionalID(topic)), client(ctx, kgo.TransactionalID(topic))
	Must(older.BeginTransaction())
	send(ctx, older, topic, "gone")
	Must(newer.BeginTransaction())
	send(ctx, newer, topic, "kept")
	Must(newer.EndTransaction(ctx, kgo.TryCommit))
	err := older.EndTransaction(ctx, kgo.TryCommit)
	Expect(errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch), "%v", err)
	Equal(values(read(ctx, topic, 1, kgo.FetchIsolationLevel(kgo.ReadCommitted()))), []string{"kept"})
}

func refused(ctx context.Context, topic, key, value string, want error, opts ...kgo.Opt) {
	record := &kgo.Record{Topic: topic, Value: []byte(value)}
	if key != "" {
		record.Key = []byte(key)
	}
	err := client(ctx, opts...).ProduceSync(ctx, record).FirstErr()
	if want == nil {
		Must(err)
		return
	}
	Expect(errors.Is(err, want), "%v, not %v", err, want)
}

func large(ctx context.Context) {
	topic := topicFor(ctx, "large", 1, settings{"max.message.bytes": "1000"})
	refused(ctx, topic, "", strings.Repeat("x", 5000), kerr.MessageTooLarge,
		kgo.ProducerBatchCompression(kgo.NoCompression()))
	refused(ctx, topic, "", "small", nil)
	// The client's own bound, without asking the broker.
	refused(ctx, topic, "", strings.Repeat("x", 5000), kerr.MessageTooLarge, kgo.ProducerBatchMaxBytes(2000))
}

func unknown(ctx context.Context) {
	refused(ctx, run+"-missing", "", "v", kerr.UnknownTopicOrPartition)
}

func keyless(ctx context.Context) {
	topic := topicFor(ctx, "compacted", 1, settings{"cleanup.policy": "compact"})
	refused(ctx, topic, "", "no key", kerr.InvalidRecord)
	refused(ctx, topic, "key", "value", nil)
}

func fromTime(ctx context.Context) {
	topic := topicFor(ctx, "from-time", 1, kept)
	cl := client(ctx)
	for n, value := range numbered("value", 10) {
		record := &kgo.Record{Topic: topic, Value: []byte(value), Timestamp: time.UnixMilli(1000 + 10*int64(n))}
		Must(cl.ProduceSync(ctx, record).FirstErr())
	}
	records := read(ctx, topic, 6, kgo.ConsumeResetOffset(kgo.NewOffset().AfterMilli(1035)))
	Equal(records[0].Offset, int64(4))
}
